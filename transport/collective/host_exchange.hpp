// What ranks of one machine tell each other on the way to something that all of them have or none: objections, and open files.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "device/keeper/file_descriptor.hpp"
#include "transport/collective/communicator.hpp"

namespace troupe {

// The first rank's objection that has one, with its number before it where there are several ranks; empty when none objects. The same on
// all ranks, which all call this. At most 240 letters of a rank's.
std::string first_objection(communicator& host, const std::string& mine);

// Every rank's file, by rank, opened here too; this rank's own place stays empty. All ranks call this, those of one user on one machine.
// Throws collective_error, and std::runtime_error where a peer's file does not come within `patience`.
std::vector<keeper::file_descriptor> exchange_files(communicator& host, const keeper::file_descriptor& mine,
                                                    std::chrono::milliseconds patience);

} // namespace troupe
