// The token_sink of one HTTP request: turns reports into JSON on the caller's thread and hands the text to the connection.
#pragma once

#include <memory>

#include "core/service.hpp"
#include "transport/http/openai_response.hpp"
#include "transport/http/reply_channel.hpp"

namespace troupe::http {

std::shared_ptr<token_sink> make_answer_sink(answer_head head, bool stream, std::shared_ptr<reply_channel> channel);

} // namespace troupe::http
