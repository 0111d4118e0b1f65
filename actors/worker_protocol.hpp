// What a serving process and its device processes must agree on, and how a program is asked for it before any rank runs it.
#pragma once

#include <chrono>
#include <string>
#include <variant>

namespace troupe::actors {

// "1-90f3a6..": a number that rises when a message's meaning changes, and a digest of the layout of all messages that cross between the
// processes. Programs that say the same understand each other.
std::string worker_protocol();

// The same for all that the head of a cluster and its nodes say to each other, ranks on nodes included.
std::string cluster_protocol();

// What a program prints, as one line, when it is called with the one argument `worker-protocol`. That argument and the line's shape stay
// as they are for ever, so that any two versions can ask each other.
std::string worker_protocol_line(const std::string& version);

// A program that device processes may run. It is this very file, held open, whatever becomes of its name later.
struct worker_program {
  std::string command; // the first word of a command line; good until close_program
  std::string version;
  int file = -1; // of this process, open
};

// Asks the program at `path`; the refusal says why device processes of this serving process cannot run it. It is killed when it has not
// answered by the deadline.
std::variant<worker_program, std::string> find_worker_program(const std::string& path, std::chrono::milliseconds deadline);

// When nobody runs it any more, nor will.
void close_program(const worker_program& program);

} // namespace troupe::actors
