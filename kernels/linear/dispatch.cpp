#include <cstdlib>
#include <string_view>

#include "kernels/linear/packed.hpp"

namespace troupe::cpu::detail {

namespace {

bool runs_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

bool runs_avx512vnni() {
#if defined(__x86_64__)
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

void add_if_there(std::vector<const kernel_set*>& sets, const kernel_set* set) {
  if (set != nullptr) sets.push_back(set);
}

} // namespace

std::span<const kernel_set* const> supported_kernels() {
  static const std::vector<const kernel_set*> sets = [] {
    std::vector<const kernel_set*> found;
    // Asking for a set runs code of its instruction set already: the processor comes first.
    add_if_there(found, runs_avx512vnni() ? avx512vnni_kernels() : nullptr);
    add_if_there(found, runs_avx2() ? avx2_kernels() : nullptr);
    found.push_back(portable_kernels());
    return found;
  }();
  return sets;
}

const kernel_set& chosen_kernels() {
  static const kernel_set& chosen = []() -> const kernel_set& {
    const char* const wanted = std::getenv("TROUPE_CPU_KERNELS");
    for (const kernel_set* set : supported_kernels()) {
      if (wanted != nullptr && std::string_view(set->name) == wanted) return *set;
    }
    return *supported_kernels().front();
  }();
  return chosen;
}

} // namespace troupe::cpu::detail
