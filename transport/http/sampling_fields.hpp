// How tokens are chosen and when a sequence ends: the members that both APIs share.
#pragma once

#include "core/request.hpp"
#include "core/service.hpp"
#include "transport/http/field_reader.hpp"
#include "transport/http/server.hpp"

namespace troupe::http {

void read_sampling(field_reader& fields, const served_model& model, const server_limits& limits, generation_request& out);
void read_stops(field_reader& fields, const served_model& model, const server_limits& limits, generation_request& out);

} // namespace troupe::http
