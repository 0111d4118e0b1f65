// fake_server PORT [API_KEY]: the HTTP side in front of an echo, to try clients against. Prints its port; ends when its input does.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include "tests/tools/echo_handler.hpp"
#include "transport/http/server.hpp"

int main(int argc, char** argv) {
  try {
    troupe::testing::echo_handler handler(std::chrono::milliseconds(1));
    troupe::http::server_options options;
    options.port = argc > 1 ? static_cast<std::uint16_t>(std::strtoul(argv[1], nullptr, 10)) : 0;
    if (argc > 2) options.api_keys = {argv[2]};
    options.version = "fake";
    troupe::http::server server(options, handler, {});
    std::cout << server.port() << std::endl;
    while (std::cin.get() != std::istream::traits_type::eof()) {
    }
    server.drain();
    server.stop();
    return 0;
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
}
