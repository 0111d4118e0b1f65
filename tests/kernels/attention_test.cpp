#include "kernels/attention.hpp"

#include <algorithm>
#include <numeric>

#include "core/half.hpp"
#include "device/cpu/kv_storage.hpp"
#include "tests/kernels/op_testing.hpp"

namespace troupe {
namespace {

// Sequences of one layer, their cache, and a naive f64 answer.
struct sequence {
  std::int32_t length = 0;
  std::vector<float> query, key, value; // [length][heads or kv_heads][head_dim]
  std::vector<block_id> blocks;
};

struct shape {
  std::int32_t heads, kv_heads, head_dim, block_size;
  dtype type;
  std::int32_t window;
};

class attention_test : public test::op_test {
 protected:
  static std::vector<float> rounded(std::vector<float> values, dtype type) {
    for (float& v : values) {
      if (type == dtype::f16) v = half_to_float(float_to_half(v));
      if (type == dtype::bf16) v = bfloat16_to_float(float_to_bfloat16(v));
    }
    return values;
  }

  std::vector<sequence> make_sequences(const shape& s, const std::vector<std::int32_t>& lengths, std::int32_t& blocks) {
    std::vector<sequence> all;
    std::int32_t needed = 0;
    for (const std::int32_t length : lengths) needed += (length + s.block_size - 1) / s.block_size;
    blocks = needed + 3;
    std::vector<block_id> free(static_cast<std::size_t>(blocks));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), random_);
    for (const std::int32_t length : lengths) {
      sequence q{length,
                 normal(static_cast<std::size_t>(length * s.heads * s.head_dim)),
                 rounded(normal(static_cast<std::size_t>(length * s.kv_heads * s.head_dim)), s.type),
                 rounded(normal(static_cast<std::size_t>(length * s.kv_heads * s.head_dim)), s.type),
                 {}};
      for (std::int32_t i = 0; i < (length + s.block_size - 1) / s.block_size; ++i) {
        q.blocks.push_back(free.back());
        free.pop_back();
      }
      all.push_back(std::move(q));
    }
    return all;
  }

  static std::vector<double> reference(const shape& s, const sequence& q, double scale) {
    std::vector<double> output(q.query.size());
    const std::int32_t group = s.heads / s.kv_heads;
    for (std::int32_t row = 0; row < q.length; ++row) {
      const std::int32_t low = s.window > 0 ? std::max(0, row - s.window + 1) : 0;
      for (std::int32_t head = 0; head < s.heads; ++head) {
        std::vector<double> weight(static_cast<std::size_t>(row + 1));
        double top = -1e300, sum = 0;
        const auto at = [&](std::int32_t position, std::int32_t d) {
          return static_cast<std::size_t>((position * s.kv_heads + head / group) * s.head_dim + d);
        };
        const std::size_t mine = static_cast<std::size_t>((row * s.heads + head) * s.head_dim);
        for (std::int32_t p = low; p <= row; ++p) {
          double dot = 0;
          for (std::int32_t d = 0; d < s.head_dim; ++d)
            dot += static_cast<double>(q.query[mine + static_cast<std::size_t>(d)]) * static_cast<double>(q.key[at(p, d)]);
          weight[static_cast<std::size_t>(p)] = dot * scale;
          top = std::max(top, dot * scale);
        }
        for (std::int32_t p = low; p <= row; ++p)
          sum += weight[static_cast<std::size_t>(p)] = std::exp(weight[static_cast<std::size_t>(p)] - top);
        for (std::int32_t p = low; p <= row; ++p) {
          for (std::int32_t d = 0; d < s.head_dim; ++d) {
            output[mine + static_cast<std::size_t>(d)] +=
                weight[static_cast<std::size_t>(p)] / sum * static_cast<double>(q.value[at(p, d)]);
          }
        }
      }
    }
    return output;
  }

  // Runs rows [done, until) of each sequence as one batch; results land in outputs.
  static void run(cpu::thread_pool& pool, const shape& s, cpu::kv_storage& kv, std::vector<sequence*> batch,
                  const std::vector<std::int32_t>& done, const std::vector<std::int32_t>& until, std::vector<std::vector<float>*> outputs) {
    const std::int64_t q_width = s.heads * s.head_dim, kv_width = s.kv_heads * s.head_dim, stride = q_width + 2 * kv_width + 1;
    std::vector<attention_span> spans;
    std::int32_t rows = 0;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (until[i] > done[i]) spans.push_back({rows, until[i] - done[i], done[i], batch[i]->blocks.data()});
      rows += until[i] - done[i];
    }
    std::vector<float> qkv = test::poisoned(static_cast<std::size_t>(rows * stride)),
                       out = test::poisoned(static_cast<std::size_t>(rows * q_width));
    float* row = qkv.data();
    for (std::size_t i = 0; i < batch.size(); ++i) {
      for (std::int32_t p = done[i]; p < until[i]; ++p, row += stride) {
        std::copy_n(batch[i]->query.data() + p * q_width, q_width, row);
        std::copy_n(batch[i]->key.data() + p * kv_width, kv_width, row + q_width);
        std::copy_n(batch[i]->value.data() + p * kv_width, kv_width, row + q_width + kv_width);
      }
    }
    cpu::kv_write(pool, {qkv.data() + q_width, qkv.data() + q_width + kv_width, stride, spans, kv.layer(1)});
    std::vector<attention_unit> units;
    cpu::split_attention(spans, s.heads, s.kv_heads, units);
    const float scale = 1.0F / std::sqrt(static_cast<float>(s.head_dim));
    cpu::attention(pool, {qkv.data(), stride, out.data(), q_width, s.heads, scale, s.window, spans, units, kv.layer(1)});
    const float* from = out.data();
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const std::int64_t count = (until[i] - done[i]) * q_width;
      std::copy_n(from, count, outputs[i]->data() + done[i] * q_width);
      from += count;
    }
  }

  static kv_layout layout_of(const shape& s) { return {s.type, s.block_size, s.kv_heads, s.head_dim}; }
};

TEST_F(attention_test, equals_the_formula_over_scattered_poisoned_blocks) {
  cpu::thread_pool pool(2);
  for (const shape s : {shape{9, 3, 64, 16, dtype::f16, 0},
                        {4, 4, 24, 1, dtype::f32, 0},
                        {6, 1, 5, 7, dtype::bf16, 0},
                        {8, 2, 128, 32, dtype::f32, 16},
                        {2, 2, 16, 16, dtype::f16, 1},
                        {7, 1, 33, 100, dtype::f32, 50},
                        {64, 1, 8, 16, dtype::f32, 0}}) {
    SCOPED_TRACE(::testing::Message() << s.heads << "/" << s.kv_heads << " heads of " << s.head_dim << ", block " << s.block_size
                                      << ", window " << s.window);
    std::int32_t blocks = 0;
    std::vector<sequence> all = make_sequences(s, {1, 150, static_cast<std::int32_t>(between(2, 200)), 64}, blocks);
    cpu::kv_storage kv(layout_of(s), 2, blocks);
    kv.fill(0xff);
    std::vector<std::vector<float>> outputs;
    std::vector<sequence*> batch;
    std::vector<std::vector<float>*> places;
    std::vector<std::int32_t> until;
    for (sequence& q : all) outputs.push_back(test::poisoned(q.query.size()));
    for (std::size_t i = 0; i < all.size(); ++i) {
      batch.push_back(&all[i]);
      places.push_back(&outputs[i]);
      until.push_back(all[i].length);
    }
    run(pool, s, kv, batch, std::vector<std::int32_t>(all.size(), 0), until, places);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::vector<double> right = reference(s, all[i], 1.0 / std::sqrt(static_cast<double>(s.head_dim)));
      for (std::size_t k = 0; k < right.size(); ++k) ASSERT_NEAR(outputs[i][k], right[k], 3e-6) << "sequence " << i << ", element " << k;
    }
  }
}

TEST_F(attention_test, a_row_does_not_depend_on_chunks_or_neighbours_bit_for_bit) {
  cpu::thread_pool pool(2);
  for (const shape s : {shape{9, 3, 64, 16, dtype::f16, 0}, {4, 2, 20, 5, dtype::f32, 30}, {8, 1, 48, 16, dtype::bf16, 100}}) {
    std::int32_t blocks = 0;
    std::vector<sequence> all = make_sequences(s, {230, 131, 64}, blocks);
    cpu::kv_storage kv(layout_of(s), 2, blocks);
    std::vector<std::vector<float>> whole, pieces;
    for (sequence& q : all) {
      whole.push_back(test::poisoned(q.query.size()));
      pieces.push_back(test::poisoned(q.query.size()));
    }
    kv.fill(0xff);
    for (std::size_t i = 0; i < all.size(); ++i) run(pool, s, kv, {&all[i]}, {0}, {all[i].length}, {&whole[i]});
    kv.fill(0xff);
    std::vector<std::int32_t> done(all.size(), 0);
    for (;;) {
      std::vector<std::int32_t> until = done;
      for (std::size_t i = 0; i < all.size(); ++i) {
        const std::int32_t chunk = static_cast<std::int32_t>(between(0, 3) == 0 ? between(0, 70) : between(0, 2));
        until[i] = std::min(all[i].length, done[i] + chunk);
      }
      run(pool, s, kv, {&all[0], &all[1], &all[2]}, done, until, {&pieces[0], &pieces[1], &pieces[2]});
      done = until;
      if (done[0] == all[0].length && done[1] == all[1].length && done[2] == all[2].length) break;
    }
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(whole[i], pieces[i]) << "sequence " << i;
  }
}

TEST_F(attention_test, a_nan_in_a_later_position_does_not_reach_earlier_rows) {
  cpu::thread_pool pool(2);
  const shape s{6, 2, 32, 16, dtype::f32, 0};
  std::int32_t blocks = 0;
  std::vector<sequence> all = make_sequences(s, {100}, blocks);
  const std::int32_t bad = 70;
  const std::int64_t width = s.kv_heads * s.head_dim;
  for (std::int64_t i = 0; i < width; ++i) {
    all[0].key[static_cast<std::size_t>(bad * width + i)] = std::numeric_limits<float>::quiet_NaN();
    all[0].value[static_cast<std::size_t>(bad * width + i)] = std::numeric_limits<float>::infinity();
  }
  cpu::kv_storage kv(layout_of(s), 2, blocks);
  std::vector<float> out = test::poisoned(all[0].query.size());
  run(pool, s, kv, {&all[0]}, {0}, {100}, {&out});
  const std::size_t row = static_cast<std::size_t>(s.heads * s.head_dim);
  for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(std::isnan(out[i]), i >= static_cast<std::size_t>(bad) * row) << i / row;
}

TEST_F(attention_test, very_large_scores_do_not_overflow) {
  cpu::thread_pool pool(1);
  const shape s{1, 1, 16, 16, dtype::f32, 0};
  std::int32_t blocks = 0;
  std::vector<sequence> all = make_sequences(s, {130}, blocks);
  for (float& q : all[0].query) q *= 1e4F;
  cpu::kv_storage kv(layout_of(s), 2, blocks);
  kv.fill(0xff);
  std::vector<float> out = test::poisoned(all[0].query.size());
  run(pool, s, kv, {&all[0]}, {0}, {130}, {&out});
  const std::vector<double> right = reference(s, all[0], 0.25);
  for (std::size_t i = 0; i < right.size(); ++i) ASSERT_NEAR(out[i], right[i], 2e-2) << i; // scores near 1e5 carry 1e-2 of rounding
}

} // namespace
} // namespace troupe
