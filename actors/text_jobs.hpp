// What a tokenizer worker does with a job. Pure but for the wall clock that chat templates may read; never throws.
#pragma once

#include "actors/protocol.hpp"
#include "actors/serving.hpp"

namespace troupe::actors {

encode_done run_job(const encode_job& job, const serving_parts& parts);
decode_done run_job(const decode_job& job, const serving_parts& parts);

} // namespace troupe::actors
