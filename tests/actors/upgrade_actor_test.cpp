// The order in which groups change their program and change back, and what is said when a group cannot: with supervisors that only answer.
#include "actors/upgrade_actor.hpp"

#include <gtest/gtest.h>
#include <caf/actor_system.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>

#include <chrono>
#include <mutex>

#include "actors/system.hpp"

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;

constexpr program_number old_program = 1, new_program = 2;

// What a group answers to a change, and to the order to change back; empty: it did.
struct group_answers {
  std::string change, undo;
};

class upgrade_actor_test : public ::testing::Test {
 protected:
  // One change of this machine's program in groups that answer so: what the asker heard, line by line, the end last.
  std::vector<std::string> change(const std::vector<group_answers>& groups, std::int64_t start_deadline_ms = 30'000) {
    serving_options options;
    options.replicas = static_cast<std::int32_t>(groups.size());
    const auto shared = std::make_shared<serving_state>(std::move(options), serving_parts{});
    std::vector<supervisor_actor> supervisors;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      supervisors.push_back(caf::actor_cast<supervisor_actor>(system_.spawn([this, i, answers = groups[i]]() -> caf::behavior {
        return {[this, i, answers](const program_change& wanted) {
          const std::lock_guard lock(guard_);
          asked_.push_back("group " + std::to_string(i) + (wanted.undo ? ": back to " : ": to ") + std::to_string(wanted.program));
          return program_changed{wanted.undo ? answers.undo : answers.change, 7'000'000, 1};
        }};
      })));
    }
    const upgrade_actor upgrade = system_.spawn(run_upgrades, shared, supervisors);
    std::vector<std::string> heard;
    caf::scoped_actor asker(system_);
    asker->send(caf::actor_cast<caf::actor>(upgrade),
                machine_upgrade{this_machine, "the head", old_program, new_program, start_deadline_ms});
    for (bool ended = false; !ended;) {
      asker->receive([&](const upgrade_note& note) { heard.push_back(note.text); },
                     [&](const upgrade_end& end) { heard.push_back("end: " + end.failure), ended = true; },
                     caf::after(10s) >> [&] { heard.emplace_back("nothing for 10 s"), ended = true; });
    }
    caf::anon_send_exit(upgrade, caf::exit_reason::user_shutdown);
    for (const supervisor_actor& one : supervisors) caf::anon_send_exit(one, caf::exit_reason::user_shutdown);
    return heard;
  }
  std::vector<std::string> asked() {
    const std::lock_guard lock(guard_);
    return asked_;
  }

 private:
  system_config config_{false};
  std::mutex guard_;
  std::vector<std::string> asked_;
  caf::actor_system system_{config_};
};

using lines = std::vector<std::string>;

TEST_F(upgrade_actor_test, groups_change_one_after_another) {
  EXPECT_EQ(change({{}, {}}), (lines{"replica 0: changed after a pause of 7 ms", "replica 1: changed after a pause of 7 ms", "end: "}));
  EXPECT_EQ(asked(), (lines{"group 0: to 2", "group 1: to 2"}));
}

TEST_F(upgrade_actor_test, what_fails_in_a_later_group_is_undone_in_those_before_it_the_last_one_first) {
  EXPECT_EQ(change({{}, {}, {"it does not start", ""}}).back(), "end: it does not start; the ranks run the program of before");
  EXPECT_EQ(asked(), (lines{"group 0: to 2", "group 1: to 2", "group 2: to 2", "group 1: back to 1", "group 0: back to 1"}));
}

TEST_F(upgrade_actor_test, a_group_that_does_not_come_back_is_named_and_the_others_are_asked_all_the_same) {
  const lines heard = change({{}, {"", "no slot is free"}, {"it does not start", ""}});
  EXPECT_EQ(heard.back(),
            "end: it does not start; replica 1: not changed back: no slot is free; the other ranks run the program of before");
  ASSERT_EQ(heard.size(), 5U);
  EXPECT_EQ(heard[2], "replica 1: not changed back: no slot is free");
  EXPECT_EQ(heard[3], "replica 0: changed back");
  EXPECT_EQ(asked().back(), "group 0: back to 1");
}

TEST_F(upgrade_actor_test, a_server_that_stops_says_so_alone) {
  EXPECT_EQ(change({{"", server_is_stopping}, {server_is_stopping, ""}}).back(), "end: the server is stopping");
}

TEST_F(upgrade_actor_test, a_deadline_out_of_range_is_refused_before_any_group_is_asked) {
  EXPECT_EQ(change({{}}, 0), (lines{"end: the deadline of a start is 1 ms to 86400000 ms, not 0 ms"}));
  EXPECT_EQ(asked(), lines{});
}

} // namespace
} // namespace troupe::actors
