// A model on two GPUs against the same model on one; what needs two is skipped where there are fewer.
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <mutex>
#include <thread>

#include "core/error.hpp"
#include "device/cuda/stream.hpp"
#include "models/gpu_model.hpp"
#include "models/gpu_weights.hpp"
#include "models/group_executor.hpp"
#include "tests/models/gpu/gpu_crowd.hpp"
#include "tests/models/gpu/gpu_model_testing.hpp"
#include "transport/collective/local_group.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;
using test::expect_close;
using test::greedy;
using test::plan_writer;
using test::report;
using test::tokens;

model_config pair_config() {
  model_config c = test::quick_config(64);
  c.intermediate_size = 336;
  return c;
}

class gpu_share_alone : public test::gpu_model_test {};

rank_context place(int tp_rank, int tp_size) { return {tp_rank, tp_size, 0, 1, nullptr, nullptr}; }

TEST(gpu_share, holds_a_slice_of_each_layer_and_of_the_head_and_the_embedding_whole) {
  model_config config = pair_config();
  config.query_key_value_bias = config.output_bias = true;
  const model_weights whole = make_dummy_weights(config, dtype::f32, 5);
  for (const int rank : {0, 1}) {
    const model_weights mine = gpu_share(whole, place(rank, 2));
    EXPECT_EQ(mine.config.num_heads, 3);
    EXPECT_EQ(mine.config.num_kv_heads, 1);
    EXPECT_EQ(mine.config.intermediate_size, 168);
    EXPECT_EQ(mine.config.output_bias, rank == 0) << "once in the sum";
    EXPECT_EQ(mine.layers[0].output_bias.empty(), rank != 0);
    EXPECT_EQ(mine.embedding.data, whole.embedding.data);
    EXPECT_EQ(mine.head.data, whole.head.row(512 * rank));
    EXPECT_EQ(mine.head.rows, rank == 0 ? 512 : 491) << "of 1003 ids";
    EXPECT_EQ(mine.layers[2].down.data, whole.layers[2].down.data + static_cast<std::size_t>(rank) * 168 * sizeof(float));
  }
}

TEST(gpu_share, of_a_small_vocabulary_the_last_ranks_have_nothing) {
  model_config config = pair_config();
  config.vocab_size = 60;
  config.num_heads = config.num_kv_heads = 2;
  const model_weights mine = gpu_share(make_dummy_weights(config, dtype::f32, 5), place(1, 2));
  EXPECT_EQ(mine.head.rows, 0);
  EXPECT_EQ(ends_of(config, place(1, 2)).ids.places, 64);
  EXPECT_EQ(gpu_weight_bytes(mine.config, ends_of(config, place(1, 2))), gpu_weight_bytes(mine.config, ends_of(config, place(0, 2))));
}

TEST(gpu_share, what_cannot_be_shared_is_refused_with_the_numbers) {
  const auto refused = [](const model_config& config, const rank_context& rank, const std::vector<std::string>& words) {
    try {
      gpu_share(config, rank);
      ADD_FAILURE() << "accepted; expected " << words[0];
    } catch (const load_error& e) {
      for (const std::string& word : words) EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
    }
  };
  refused(pair_config(), place(0, 3), {"2 KV heads", "3"});
  refused(pair_config(), place(0, 8), {"6 attention heads", "8"});
  rank_context stage = place(0, 1);
  stage.stages = 4;
  refused(pair_config(), stage, {"3 layers", "4 pipeline stages"});
}

TEST(gpu_parts, are_cut_from_the_least_rows_on_with_all_decode_rows_in_the_first) {
  EXPECT_EQ(cut_in_two(1023, 0, 512), std::nullopt);
  for (const std::int32_t rows : {1024, 1026, 1151, 1152, 1279}) EXPECT_EQ(cut_in_two(rows, 0, 512), 512) << rows;
  EXPECT_EQ(cut_in_two(1280, 0, 512), 640);
  EXPECT_EQ(cut_in_two(1280, 513, 512), 640);
  EXPECT_EQ(cut_in_two(1280, 641, 512), 768);
  EXPECT_EQ(cut_in_two(1280, 769, 512), std::nullopt);
  EXPECT_EQ(cut_in_two(8192, 8192, 512), std::nullopt);
}

// One of nine tokens with so much weight that no rounding decides, by the sequence's seed.
sampling_params one_of_nine(std::uint64_t seed) {
  sampling_params random;
  for (token_id token = 100; token < 1000; token += 100) random.logit_bias.push_back({token, 40});
  random.seed = seed;
  return random;
}

// Prompts that a group cuts in two parts, whose sums overlap each other's work; odd rows, and decode rows before them.
struct long_prompts {
  model_config config = pair_config();
  gpu_executor_options options = test::small_gpu_options();
  std::vector<tokens> prompts;

  explicit long_prompts(std::int32_t step_tokens) {
    config.max_position = 2 * step_tokens;
    options.max_batched_tokens = step_tokens;
    options.num_blocks = 2 * step_tokens / options.block_size;
    std::mt19937 random(std::random_device{}());
    for (const std::int32_t length : {step_tokens / 2 + 1, step_tokens * 7 / 10, step_tokens * 19 / 10}) {
      tokens& prompt = prompts.emplace_back();
      for (std::int32_t i = 0; i < length; ++i) prompt.push_back(static_cast<token_id>(random() % 1003));
    }
  }
  std::vector<test::prompt_report> reports(step_executor& executor) const {
    std::vector<test::prompt_report> all;
    for (const tokens& prompt : prompts)
      all.push_back(report(executor, prompt, static_cast<std::size_t>(options.max_batched_tokens), 4, 3, 9));
    return all;
  }
  // A sequence that decodes beside another's prompt.
  tokens mixed(step_executor& executor) const {
    plan_writer writer(executor, 5);
    writer.plan.epoch = 1000;
    writer.open(0, 20, one_of_nine(3), 64);
    writer.prefill(0, 0, test::part_of(prompts[0], 0, 20), true);
    tokens drawn = writer.run()[0].tokens;
    const auto length = static_cast<std::int32_t>(prompts[1].size());
    writer.open(1, length, one_of_nine(4), length + 10);
    for (std::int32_t step = 0; step < 4; ++step) {
      writer.decode(0, 20 + step);
      step == 0 ? writer.prefill(1, 0, prompts[1], true) : writer.decode(1, length - 1 + step);
      for (const slot_output& output : writer.run()) drawn.insert(drawn.end(), output.tokens.begin(), output.tokens.end());
    }
    writer.close(0);
    writer.close(1);
    writer.run();
    return drawn;
  }
};

TEST_F(gpu_share_alone, a_group_of_one_computes_what_one_alone_does) {
  long_prompts work(8192);
  for (const bool tied : {false, true}) {
    work.config.tied_head = tied;
    const model_weights whole = make_dummy_weights(work.config, dtype::f32, std::random_device{}());
    std::vector<test::prompt_report> right;
    {
      const auto alone = make_gpu_executor(whole, work.options);
      right = work.reports(*alone);
    }
    rank_context host = place(0, 1);
    host.tensor = std::move(make_local_group(1, 5s).front());
    cuda::nccl_options joining;
    joining.deadline = 5s;
    cuda::use_device(0);
    const gpu_rank rank{host, cuda::join_nccl_group(cuda::make_nccl_group_id(joining), 0, 1, joining), nullptr, nullptr};
    const auto group = make_gpu_executor(whole, work.options, rank);
    const auto got = work.reports(*group);
    for (std::size_t i = 0; i < right.size(); ++i) expect_close(got[i], right[i], 0.03F);
  }
}

// Two ranks on two threads, each with a GPU of its own.
class gpu_pair : public test::gpu_pair_test {
 protected:
  static gpu_executor_options on_gpu(gpu_executor_options options, const rank_context& rank) {
    options.device = rank.tp_rank;
    return options;
  }
  static std::unique_ptr<step_executor> make(const model_weights& whole, const gpu_executor_options& options) {
    return make_group_executor(make_local_ranks(2, 1, 30s), [&](const rank_context& rank) {
      return make_gpu_executor(whole, on_gpu(options, rank), join_gpus(rank, rank.tp_rank, 5s));
    });
  }
};

struct pair_case {
  const char* name;
  dtype type = dtype::f16;
  bool biases = false, head_norm = false, window = false, tied = false, plain = false, graphs = true, own_all_reduce = true;
  std::int32_t kv_heads = 2, heads = 6, width = 336;
  bool batch_invariant = false;
};

std::string label(const ::testing::TestParamInfo<pair_case>& info) { return info.param.name; }

class gpu_pair_model : public gpu_pair, public ::testing::WithParamInterface<pair_case> {};

TEST_P(gpu_pair_model, scores_and_greedy_tokens_are_those_of_one_gpu) {
  const pair_case& p = GetParam();
  model_config config = pair_config();
  config.num_kv_heads = p.kv_heads;
  config.num_heads = p.heads;
  config.intermediate_size = p.width;
  config.query_key_value_bias = config.output_bias = p.biases;
  config.query_key_norm = p.head_norm;
  config.tied_head = p.tied;
  if (p.window) config.sliding_window = 40;
  const model_weights whole = make_dummy_weights(config, dtype::f32, std::random_device{}());
  gpu_executor_options options = test::small_gpu_options();
  options.type = p.type;
  options.graphs = p.graphs;
  options.own_all_reduce = p.own_all_reduce;
  options.batch_invariant = p.batch_invariant;
  if (p.plain) options = reference(options);
  const auto right = ask(*make_gpu_executor(whole, options));
  expect_same_answers(*make(whole, options), right, p.type == dtype::f16 ? 0.03F : 0.24F, false);
}

INSTANTIATE_TEST_SUITE_P(
    models, gpu_pair_model,
    ::testing::Values(pair_case{.name = "f16"}, pair_case{.name = "bf16", .type = dtype::bf16}, pair_case{.name = "biases", .biases = true},
                      pair_case{.name = "head_norm", .head_norm = true},
                      pair_case{.name = "repeated_kv_head", .window = true, .tied = true, .kv_heads = 1},
                      pair_case{.name = "without_graphs", .graphs = false}, pair_case{.name = "sums_by_nccl", .own_all_reduce = false},
                      pair_case{.name = "reference", .biases = true, .plain = true},
                      pair_case{.name = "odd_heads", .biases = true, .kv_heads = 3, .heads = 9, .width = 328},
                      pair_case{.name = "odd_heads_bf16", .type = dtype::bf16, .kv_heads = 3, .heads = 9},
                      pair_case{.name = "odd_heads_norm", .head_norm = true, .window = true, .kv_heads = 5, .heads = 5},
                      pair_case{.name = "odd_heads_reference", .plain = true, .kv_heads = 3, .heads = 9},
                      pair_case{.name = "odd_heads_without_graphs", .graphs = false, .kv_heads = 3, .heads = 9},
                      pair_case{.name = "odd_heads_batch_invariant", .biases = true, .kv_heads = 3, .heads = 9, .batch_invariant = true},
                      pair_case{.name = "odd_queries_of_a_repeated_head", .kv_heads = 1, .heads = 7, .width = 328}),
    label);

TEST_F(gpu_pair, long_prompts_in_two_parts_score_as_on_one_gpu) {
  for (const auto& [own, kv_heads] : {std::pair{true, 2}, {false, 2}, {true, 3}}) {
    SCOPED_TRACE(std::string(own ? "sums by copies" : "sums by NCCL") + ", " + std::to_string(kv_heads) + " KV heads");
    long_prompts work(own ? 2048 : 8192);
    work.config.num_kv_heads = kv_heads;
    work.config.num_heads = 3 * kv_heads;
    work.options.own_all_reduce = own;
    const model_weights whole = make_dummy_weights(work.config, dtype::f32, std::random_device{}());
    std::vector<test::prompt_report> right;
    tokens beside;
    {
      const auto one = make_gpu_executor(whole, work.options);
      right = work.reports(*one);
      beside = work.mixed(*one);
    }
    const auto two = make(whole, work.options);
    for (int time = 0; time < 3; ++time) {
      const auto got = work.reports(*two);
      for (std::size_t i = 0; i < right.size(); ++i) expect_close(got[i], right[i], 0.03F);
    }
    EXPECT_EQ(work.mixed(*two), beside);
    EXPECT_EQ(beside.size(), 9U);
  }
}

TEST_F(gpu_pair, a_batch_draws_what_each_sequence_draws_alone) {
  const model_weights whole = make_dummy_weights(pair_config(), dtype::f32, 7);
  const auto two = make(whole, test::small_gpu_options());
  plan_writer writer(*two);
  const auto sampling_of = [](slot_id slot) { return one_of_nine(static_cast<std::uint64_t>(slot) + 11); };
  std::vector<tokens> prompts, alone;
  for (slot_id slot = 0; slot < 5; ++slot) {
    prompts.push_back(random_tokens(static_cast<std::size_t>(10 + 7 * slot)));
    alone.push_back(test::generate(writer, slot, prompts.back(), sampling_of(slot), 12));
  }
  std::vector<tokens> together(prompts.size());
  for (slot_id slot = 0; slot < 5; ++slot) {
    const tokens& prompt = prompts[static_cast<std::size_t>(slot)];
    writer.open(slot, static_cast<std::int32_t>(prompt.size()), sampling_of(slot), 64);
    writer.prefill(slot, 0, prompt, true);
  }
  for (std::int32_t step = 0; step < 12; ++step) {
    const auto outputs = writer.run();
    for (std::size_t i = 0; i < together.size(); ++i) {
      together[i].insert(together[i].end(), outputs[i].tokens.begin(), outputs[i].tokens.end());
      writer.decode(static_cast<slot_id>(i), static_cast<std::int32_t>(prompts[i].size()) + step);
    }
  }
  EXPECT_EQ(together, alone);
}

TEST_F(gpu_pair, the_own_all_reduce_is_checked_at_the_start_or_left_alone_as_the_user_says) {
  const model_weights whole = make_dummy_weights(pair_config(), dtype::f32, 7);
  const auto lines_of = [&](bool wanted) {
    std::mutex guard;
    std::string lines;
    gpu_executor_options options = test::small_gpu_options();
    options.own_all_reduce = wanted;
    options.log = [&](const std::string& line) {
      const std::lock_guard lock(guard);
      lines += line + "\n";
    };
    make(whole, options);
    return lines;
  };
  const std::string on = lines_of(true), off = lines_of(false);
  EXPECT_NE(on.find("sums of up to 256 rows go through the GPUs' own windows: checked against NCCL"), std::string::npos) << on;
  EXPECT_NE(on.find("sums over GPUs: "), std::string::npos) << "in the ledger: " << on;
  EXPECT_EQ(off.find("sums"), std::string::npos) << off;
  ::setenv("NCCL_P2P_LEVEL", "LOC", 1);
  const std::string forbidden = lines_of(true);
  ::unsetenv("NCCL_P2P_LEVEL");
  EXPECT_NE(forbidden.find("NCCL does all sums over the GPUs: rank 0: NCCL_P2P_LEVEL=LOC forbids it"), std::string::npos) << forbidden;
}

TEST_F(gpu_pair, the_same_batch_gives_the_same_bits_through_graphs_and_again) {
  const model_weights whole = make_dummy_weights(pair_config(), dtype::f32, 7);
  const auto two = make(whole, test::small_gpu_options());
  const tokens prompt = random_tokens(90);
  const auto first = report(*two, prompt, 256, 24), second = report(*two, prompt, 256, 24);
  EXPECT_EQ(first.drawn, second.drawn);
  for (std::size_t i = 0; i < first.drawn_scores.size(); ++i) {
    EXPECT_EQ(first.drawn_scores[i].chosen.logprob, second.drawn_scores[i].chosen.logprob) << i;
  }
}

TEST_F(gpu_pair, batch_invariant_ranks_tell_a_sequence_the_same_alone_and_in_a_crowd) {
  const model_weights whole = make_dummy_weights(pair_config(), dtype::f32, 7);
  for (const bool graphs : {true, false}) {
    gpu_executor_options options = test::small_gpu_options();
    options.type = dtype::bf16;
    options.batch_invariant = true;
    options.graphs = graphs;
    options.max_num_seqs = 40;
    options.num_blocks = 640;
    const auto two = make(whole, options);
    const auto members = test::random_members(40, 160, 1003, 21);
    const auto right = test::crowd(*two, members, 16, 21).alone();
    test::crowd all(*two, members, 16, 22);
    const auto got = all.together(right);
    EXPECT_EQ(all.contradictions(), 0);
    EXPECT_GT(all.replays(), 0);
    test::expect_same(got, right);
  }
}

TEST_F(gpu_pair, the_smallest_kv_pool_is_everybodys_and_other_limits_must_agree) {
  const model_weights whole = make_dummy_weights(pair_config(), dtype::f32, 7);
  const auto made = [&](auto change) {
    return make_group_executor(make_local_ranks(2, 1, 30s), [&](const rank_context& rank) {
      gpu_executor_options options = on_gpu(test::small_gpu_options(), rank);
      change(options, rank.tp_rank);
      return make_gpu_executor(whole, options, join_gpus(rank, rank.tp_rank, 5s));
    });
  };
  EXPECT_EQ(made([](auto& o, int rank) { o.num_blocks = 64 - 16 * rank; })->info().num_blocks, 48);
  EXPECT_THROW(made([](auto& o, int rank) { o.max_num_seqs = 8 - rank; }), load_error);
}

// Both ranks of a group, each to be given plans of its own.
std::vector<std::unique_ptr<step_executor>> each_alone(
    const std::vector<rank_context>& ranks, const std::function<std::unique_ptr<step_executor>(const rank_context&)>& make_rank) {
  std::vector<std::unique_ptr<step_executor>> each(ranks.size());
  {
    std::vector<std::jthread> threads;
    for (const rank_context& rank : ranks) {
      threads.emplace_back([&, rank] { each[static_cast<std::size_t>(rank.tp_rank)] = make_rank(rank); });
    }
  }
  return each;
}

TEST_F(gpu_pair, a_peer_that_stops_between_decode_steps_fails_them_and_what_it_gets_is_never_wrong) {
  const model_weights whole = make_dummy_weights(pair_config(), dtype::f32, 7);
  const tokens prompt = random_tokens(40);
  const tokens right = [&] {
    const auto two = make(whole, test::small_gpu_options());
    plan_writer writer(*two);
    return test::generate(writer, 0, prompt, greedy(), 6);
  }();
  const auto each = each_alone(make_local_ranks(2, 1, 30s), [&](const rank_context& rank) {
    return make_gpu_executor(whole, on_gpu(test::small_gpu_options(), rank), join_gpus(rank, rank.tp_rank, 1s));
  });
  plan_writer stays(*each[0]), stops(*each[1]);
  const auto both = [&](auto write) {
    std::vector<std::future<step_outcome>> outcomes;
    for (plan_writer* writer : {&stays, &stops}) {
      write(*writer);
      // On threads of their own, as on a rank's: what one queues may not come back before the other rank's work is queued too.
      outcomes.push_back(std::async(std::launch::async, [writer] { return writer->submit(); }));
    }
    for (auto& outcome : outcomes) {
      ASSERT_EQ(outcome.wait_for(10s), std::future_status::ready);
      ASSERT_TRUE(std::holds_alternative<step_result>(outcome.get()));
    }
  };
  both([&](plan_writer& writer) {
    writer.open(0, 40, greedy(), 64);
    writer.prefill(0, 0, prompt, true);
  });
  for (std::int32_t position = 40; position < 44; ++position) both([&](plan_writer& writer) { writer.decode(0, position); });
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::future<step_outcome>> alone;
  for (std::int32_t position = 44; position < 47; ++position) { // graphs that wait for sums
    stays.decode(0, position);
    alone.push_back(stays.start());
  }
  for (auto& outcome : alone) {
    ASSERT_EQ(outcome.wait_for(10s), std::future_status::ready);
    const step_outcome got = outcome.get();
    ASSERT_TRUE(std::holds_alternative<step_failure>(got));
    EXPECT_TRUE(std::get<step_failure>(got).by_peer);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, 1s);
  EXPECT_LT(took, 8s);
  // It comes when the other has given up: it must not take that one's remains for sums. Only where the other's kernels have not seen yet
  // that they are to let go do both still do the step, and rightly.
  stops.decode(0, 44);
  auto late = stops.start();
  ASSERT_EQ(late.wait_for(10s), std::future_status::ready);
  const step_outcome got = late.get();
  if (const auto* result = std::get_if<step_result>(&got)) {
    EXPECT_EQ(result->outputs.at(0).tokens, tokens{right[5]});
  }
}

TEST_F(gpu_pair, a_peer_that_does_not_come_fails_the_step_and_a_new_group_forms) {
  const model_weights whole = make_dummy_weights(pair_config(), dtype::f32, 7);
  {
    const auto ranks = make_local_ranks(2, 1, 30s);
    const auto each = each_alone(ranks, [&](const rank_context& rank) {
      return make_gpu_executor(whole, on_gpu(test::small_gpu_options(), rank), join_gpus(rank, rank.tp_rank, 1s));
    });
    plan_writer writer(*each[0]);
    writer.open(0, 40, greedy(), 64);
    writer.prefill(0, 0, random_tokens(40), true);
    const auto begin = std::chrono::steady_clock::now();
    auto first = writer.start();
    writer.decode(0, 40); // as a graph, behind the step that hangs
    auto second = writer.start();
    for (auto* outcome : {&first, &second}) {
      ASSERT_EQ(outcome->wait_for(10s), std::future_status::ready);
      const step_outcome got = outcome->get();
      ASSERT_TRUE(std::holds_alternative<step_failure>(got));
      EXPECT_TRUE(std::get<step_failure>(got).by_peer);
      EXPECT_NE(std::get<step_failure>(got).reason.find("rank 0"), std::string::npos) << std::get<step_failure>(got).reason;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_GE(took, 1s);
    EXPECT_LT(took, 8s);
    RecordProperty("seconds", std::to_string(took.count()));
    std::printf("failed after %.2f s: %s\n", took.count(), "deadline 1 s");
  }
  const auto two = make(whole, test::small_gpu_options());
  plan_writer writer(*two);
  EXPECT_EQ(test::generate(writer, 0, random_tokens(40), greedy(), 8).size(), 8U);
}

} // namespace
} // namespace troupe
