#include "simulation/h200.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace troupe::simulation {

namespace {

// Measured on one H200 and, for transfers, on two (driver 580, CUDA 13.0, NCCL 2.28.9), but for the share.
constexpr double kAttentionShare = 0.5;      // of the dense rate, assumed
constexpr double kBoundaryNs = 2500;         // each kernel boundary of a decode step, with programmatic dependent launch
constexpr double kKernelsPerLayer = 4;       // between boundaries, as in the chain of 129 kernels for 32 layers
constexpr double kNvlinkBytesPerNs = 394;    // peer copy
constexpr double kNvlinkHopNs = 3600;        // an eager launch on the next stage
constexpr double kSocketBytesPerNs = 4;      // NCCL over sockets, without RDMA
constexpr double kSocketHopNs = 41000;       // 8 KiB
constexpr double kMemoryBytes = 141e9 * 0.9; // of it, for weights and KV
constexpr std::int32_t kBlockSize = 16;

class roofline {
 public:
  roofline(const model_shape& model, const layout& parallel, const gpu_rates& rates) : m_(model), p_(parallel), rates_(rates) {}

  double weights_ns() const { return 2 * m_.read_parameters / p_.tensor_parallel / read_bytes_per_ns(); }
  double boundaries_ns() const { return (kKernelsPerLayer * m_.layers + 1) * kBoundaryNs; }
  double kv_bytes_per_token() const { return 4.0 * m_.layers * m_.kv_heads * m_.head_dim / p_.tensor_parallel; } // of one GPU

  // Everything but attention, for `rows` tokens in one step.
  double linear_ns(double rows) const {
    const double flops = 2 * m_.read_parameters * rows / p_.tensor_parallel;
    return std::max(weights_ns(), flops / flops_per_ns()) + boundaries_ns() + transfers_ns(rows);
  }
  double decode_attention_ns(double rows, double context) const { return rows * context * kv_bytes_per_token() / read_bytes_per_ns(); }
  // QK and PV: 4 operations per head, dimension and pair of tokens; causal within the chunk.
  double prefill_attention_ns(double tokens, double context) const {
    const double pairs = tokens * (context + tokens / 2);
    return 4.0 * m_.layers * m_.heads * m_.head_dim * pairs / p_.tensor_parallel / (kAttentionShare * flops_per_ns());
  }

 private:
  double read_bytes_per_ns() const { return rates_.read_bytes_per_second * 1e-9; }
  double flops_per_ns() const { return rates_.flops_per_second * 1e-9; }
  double transfers_ns(double rows) const {
    const double bytes = 2.0 * m_.hidden * rows;
    const double reduce = p_.tensor_parallel > 1 ? 2 * m_.layers * all_reduce_seconds(rates_, p_.tensor_parallel, bytes) * 1e9 : 0;
    const double hop = p_.across_nodes ? kSocketHopNs + bytes / kSocketBytesPerNs : kNvlinkHopNs + bytes / kNvlinkBytesPerNs;
    return reduce + (p_.pipeline_parallel > 1 ? p_.pipeline_parallel * hop : 0); // the last hop brings the token back
  }

  const model_shape& m_;
  const layout& p_;
  const gpu_rates& rates_;
};

std::vector<double> doubling(double first, double last) {
  std::vector<double> axis;
  for (double x = first; x <= last; x *= 2) axis.push_back(x);
  return axis;
}

} // namespace

std::optional<model_shape> find_model_shape(std::string_view name) {
  static const std::array<model_shape, 2> shapes = {{{"llama-3.1-8b", 7.505e9, 8.030e9, 32, 4096, 32, 8, 128, 128256, 131072},
                                                     {"llama-3.1-70b", 69.50e9, 70.55e9, 80, 8192, 64, 8, 128, 128256, 131072}}};
  for (const model_shape& s : shapes) {
    if (s.name == name) return s;
  }
  return std::nullopt;
}

std::vector<std::string> model_shape_names() { return {"llama-3.1-8b", "llama-3.1-70b"}; }

std::optional<device_table> h200_table(const model_shape& model, const layout& parallel, std::int32_t max_num_seqs,
                                       std::int32_t max_batched_tokens, const gpu_rates& rates) {
  const roofline roof(model, parallel, rates);
  const double kv_memory = kMemoryBytes - 2 * model.all_parameters / parallel.gpus();
  const double blocks = kv_memory / (roof.kv_bytes_per_token() / parallel.pipeline_parallel * kBlockSize) / parallel.pipeline_parallel;
  if (blocks < 1) return std::nullopt;
  device_table t;
  t.device = "H200";
  t.model = model.name;
  const std::int32_t seqs = std::max(1, max_num_seqs / parallel.pipeline_parallel);
  t.limits = {kBlockSize,      static_cast<std::int32_t>(blocks), seqs, std::max(max_batched_tokens, seqs), model.max_model_len,
              model.vocab_size};
  t.decode.counts = doubling(1, 1024);
  t.prefill.counts = doubling(1, 16384);
  t.decode.contexts = t.prefill.contexts = {0, 1024, 131072};
  for (const double rows : t.decode.counts) {
    for (const double c : t.decode.contexts) t.decode.ns.push_back(roof.linear_ns(rows) + roof.decode_attention_ns(rows, c));
  }
  for (const double n : t.prefill.counts) {
    for (const double c : t.prefill.contexts) t.prefill.ns.push_back(roof.linear_ns(n) + roof.prefill_attention_ns(n, c));
  }
  t.shared_ns = roof.weights_ns() + roof.boundaries_ns();
  return t;
}

} // namespace troupe::simulation
