#include "apps/groups/links.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/hex.hpp"
#include "models/group_executor.hpp"

namespace troupe::apps {

std::string to_text(const tcp_address& address) { return address.host + " " + std::to_string(address.port) + " " + hex_of(address.token); }

tcp_address parse_tcp_address(const std::string& text) {
  std::istringstream in(text);
  tcp_address address;
  std::string token;
  in >> address.host >> address.port >> token;
  if (!in || token.size() != 2 * address.token.size() || token.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw std::invalid_argument("\"" + text + "\" is no place to meet a group");
  }
  for (std::size_t i = 0; i < address.token.size(); ++i) {
    address.token[i] = static_cast<std::uint8_t>(std::stoi(token.substr(2 * i, 2), nullptr, 16));
  }
  return address;
}

namespace {

// An address as the ranks hand it round: text of one length.
constexpr std::size_t kAddressWords = 24;
using address_words = std::array<std::int32_t, kAddressWords>;

address_words to_words(const std::string& text) {
  address_words words{};
  if (text.size() >= sizeof words) throw std::invalid_argument("an address of " + std::to_string(text.size()) + " letters is too long");
  std::memcpy(words.data(), text.data(), text.size());
  return words;
}

std::string from_words(const std::int32_t* words) { return {reinterpret_cast<const char*>(words)}; }

// All of a rank's communicators; they go together, for a rank that leaves one group must not be thought lost by the others of another.
struct link_bundle {
  std::unique_ptr<communicator> all, tensor, pipeline;
};

class tcp_link final : public group_link {
 public:
  tcp_link(const group_layout& layout, const actors::rank_start& place, const actors::publish_rendezvous& publish)
      : layout_(layout), rank_(place.rank), rendezvous_(place.rendezvous) {
    if (rank_ > 0) return;
    door_.emplace(options("group"));
    publish(to_text(door_->address()));
  }

  rank_context meet() override {
    const int size = layout_.tp_size * layout_.stages;
    auto bundle = std::make_shared<link_bundle>();
    bundle->all = door_ ? door_->form(size) : join_tcp_group(parse_tcp_address(rendezvous_), rank_, size, options("group"));
    rank_context rank{rank_ % layout_.tp_size, layout_.tp_size, rank_ / layout_.tp_size, layout_.stages, nullptr, nullptr};
    if (layout_.cluster) {
      rank.interface = layout_.interface;
      rank.across_nodes = layout_.across_nodes;
    }
    if (layout_.stages == 1) {
      rank.tensor = {bundle, bundle->all.get()};
    } else if (layout_.tp_size == 1) {
      rank.pipeline = {bundle, bundle->all.get()};
    } else {
      split(*bundle, rank);
      rank.tensor = {bundle, bundle->tensor.get()};
      rank.pipeline = {bundle, bundle->pipeline.get()};
    }
    return rank;
  }

 private:
  tcp_options options(const std::string& name) const {
    tcp_options o;
    o.name = name;
    o.interface = layout_.interface;
    o.across_nodes = layout_.across_nodes;
    o.form_deadline = layout_.form_deadline;
    o.deadline = layout_.call_deadline;
    return o;
  }

  // The first rank of each stage and of each column opens a door, and all doors are told to all ranks.
  void split(link_bundle& bundle, const rank_context& rank) const {
    std::optional<tcp_rendezvous> tensor_door, pipeline_door;
    std::array<address_words, 2> mine{};
    if (rank.tp_rank == 0) mine[0] = to_words(to_text(tensor_door.emplace(options("tensor group")).address()));
    if (rank.stage == 0) mine[1] = to_words(to_text(pipeline_door.emplace(options("pipeline")).address()));
    std::vector<std::array<address_words, 2>> all(static_cast<std::size_t>(rank.size()));
    bundle.all->all_gather({mine.data(), 2 * kAddressWords, dtype::i32}, {all.data(), all.size() * 2 * kAddressWords, dtype::i32});
    const auto door_of = [&](int number, std::size_t which) {
      return parse_tcp_address(from_words(all[static_cast<std::size_t>(number)][which].data()));
    };
    bundle.tensor = tensor_door
                        ? tensor_door->form(rank.tp_size)
                        : join_tcp_group(door_of(rank.stage * rank.tp_size, 0), rank.tp_rank, rank.tp_size, options("tensor group"));
    bundle.pipeline = pipeline_door ? pipeline_door->form(rank.stages)
                                    : join_tcp_group(door_of(rank.tp_rank, 1), rank.stage, rank.stages, options("pipeline"));
  }

  const group_layout layout_;
  const int rank_;
  const std::string rendezvous_;
  std::optional<tcp_rendezvous> door_; // rank 0's
};

class local_link final : public group_link {
 public:
  explicit local_link(rank_context rank) : rank_(std::move(rank)) {}
  rank_context meet() override { return std::move(rank_); }

 private:
  rank_context rank_;
};

constexpr const char* kThisProcess = "this process";

} // namespace

// Rank 0 makes the communicators of a generation; each rank takes its own away. What nobody took goes with the next generation.
struct group_links::local_groups {
  struct group {
    std::uint64_t generation = 0;
    std::vector<rank_context> ranks;
  };
  std::mutex guard;
  std::map<std::int32_t, group> by_replica;
};

group_links::group_links(const group_layout& layout) : layout_(layout), local_(std::make_shared<local_groups>()) {}
group_links::~group_links() = default;

std::unique_ptr<group_link> group_links::open(const actors::rank_start& place, const actors::publish_rendezvous& publish) {
  if (place.size != layout_.tp_size * layout_.stages) throw std::runtime_error("the group has another size than its layout");
  if (layout_.processes) return std::make_unique<tcp_link>(layout_, place, publish);
  std::unique_lock lock(local_->guard);
  auto& group = local_->by_replica[place.replica];
  if (place.rank == 0) {
    group = {place.generation, make_local_ranks(layout_.tp_size, layout_.stages, layout_.call_deadline)};
  } else if (place.rendezvous != kThisProcess || group.generation != place.generation) {
    throw std::runtime_error("the group was given up before this rank came");
  }
  auto link = std::make_unique<local_link>(std::move(group.ranks.at(static_cast<std::size_t>(place.rank))));
  lock.unlock();
  if (place.rank == 0) publish(kThisProcess);
  return link;
}

} // namespace troupe::apps
