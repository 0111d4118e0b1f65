// The socket by which a running server is told what to do: who is heard, and what a client learns.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "apps/admin/admin_socket.hpp"
#include "device/keeper/socket.hpp"

namespace troupe::apps {
namespace {

using namespace std::chrono_literals;

admin_socket::outcome ask(const std::string& command, std::vector<std::string>* notes = nullptr) {
  return ask_server(getpid(), command, [&](const std::string& line) {
    if (notes != nullptr) notes->push_back(line);
  });
}

TEST(AdminSocket, ACommandIsAnsweredWithNotesAndAnOutcome) {
  const admin_socket server(admin_name(getpid()), [](const std::string& command, const admin_socket::tell_fn& tell) {
    tell("first");
    tell("second");
    return admin_socket::outcome{command == "good", "heard " + command};
  });
  std::vector<std::string> notes;
  const auto good = ask("good", &notes);
  EXPECT_TRUE(good.done);
  EXPECT_EQ(good.text, "heard good");
  EXPECT_EQ(notes, (std::vector<std::string>{"first", "second"}));
  const auto bad = ask("bad");
  EXPECT_FALSE(bad.done);
  EXPECT_EQ(bad.text, "heard bad");
}

TEST(AdminSocket, AHandlerThatThrowsIsAFailedCommandAndTheServerGoesOn) {
  const admin_socket server(admin_name(getpid()), [](const std::string& command, const admin_socket::tell_fn&) -> admin_socket::outcome {
    if (command == "throw") throw std::runtime_error("no such luck");
    return {true, std::string(20'000, 'x')};
  });
  EXPECT_EQ(ask("throw").text, "no such luck");
  EXPECT_TRUE(ask("go on").done) << "and a text that is too long is cut";
  EXPECT_FALSE(ask(std::string(20'000, 'y')).done) << "a command that is too long is not sent";
}

TEST(AdminSocket, WhereNobodyListensAClientIsToldAtOnce) {
  const auto how = ask("anything");
  EXPECT_FALSE(how.done);
  EXPECT_NE(how.text.find(std::to_string(getpid())), std::string::npos) << how.text;
}

TEST(AdminSocket, ANameThatAnotherProcessHasTakenIsNotTrusted) {
  const pid_t parent = getppid(); // this process listens under its parent's name
  const admin_socket server(admin_name(parent), [](const std::string&, const admin_socket::tell_fn&) {
    return admin_socket::outcome{true, "obeyed"};
  });
  const auto how = ask_server(parent, "anything", [](const std::string&) {});
  EXPECT_FALSE(how.done);
  EXPECT_NE(how.text.find("not the one that listens"), std::string::npos) << how.text;
}

TEST(AdminSocket, WhoListensIsFoundByTheSecondWordOfItsCommandLine) {
  std::ifstream words("/proc/self/cmdline");
  std::string first, second;
  std::getline(words, first, '\0');
  std::getline(words, second, '\0');
  EXPECT_TRUE(admin_processes(second).empty()) << "nobody listens yet";
  const admin_socket server(admin_name(getpid()), [](const std::string&, const admin_socket::tell_fn&) { return admin_socket::outcome{}; });
  const auto client = keeper::connect_to(admin_name(getpid()), 0ms, 0ms);
  EXPECT_EQ(admin_processes(second), std::vector<pid_t>{getpid()});
  EXPECT_TRUE(admin_processes("another word").empty());
}

TEST(AdminSocket, ATakenNameIsAnErrorOfTheStart) {
  const auto handle = [](const std::string&, const admin_socket::tell_fn&) { return admin_socket::outcome{}; };
  const admin_socket first(admin_name(getpid()), handle);
  EXPECT_THROW(admin_socket(admin_name(getpid()), handle), std::runtime_error);
}

TEST(AdminSocket, AClientThatSaysNothingOrLeavesDelaysTheNextOneOnly) {
  const admin_socket server(admin_name(getpid()), [](const std::string&, const admin_socket::tell_fn&) {
    return admin_socket::outcome{true, "done"};
  });
  const auto silent = keeper::connect_to(admin_name(getpid()), 0ms, 0ms);
  { const auto leaves = keeper::connect_to(admin_name(getpid()), 0ms, 0ms); }
  const auto began = std::chrono::steady_clock::now();
  EXPECT_TRUE(ask("good").done);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 8s) << "a silent one has 2 s";
}

TEST(AdminSocket, TheCommandOfAClientThatHasLeftIsNotObeyed) {
  std::mutex busy;
  std::vector<std::string> obeyed;
  const admin_socket server(admin_name(getpid()), [&](const std::string& command, const admin_socket::tell_fn&) {
    const std::lock_guard lock(busy);
    obeyed.push_back(command);
    return admin_socket::outcome{true, "done"};
  });
  std::unique_lock lock(busy);
  auto first = std::async(std::launch::async, [] { return ask("first"); });
  std::this_thread::sleep_for(100ms); // it is being carried out
  {
    const auto leaves = keeper::connect_to(admin_name(getpid()), 0ms, 0ms);
    ASSERT_EQ(::send(leaves.get(), "late", 4, MSG_NOSIGNAL), 4);
  }
  lock.unlock();
  EXPECT_TRUE(first.get().done);
  EXPECT_TRUE(ask("last").done);
  const std::lock_guard again(busy);
  EXPECT_EQ(obeyed, (std::vector<std::string>{"first", "last"}));
}

TEST(AdminSocket, TheEndOfTheServerIsTheEndOfAWait) {
  auto server = std::make_unique<admin_socket>(admin_name(getpid()), [](const std::string&, const admin_socket::tell_fn&) {
    return admin_socket::outcome{true, "done"};
  });
  const auto waiting = keeper::connect_to(admin_name(getpid()), 0ms, 0ms);
  server.reset();
  char byte = 0;
  EXPECT_LE(::recv(waiting.get(), &byte, 1, 0), 0) << "closed, or reset";
}

} // namespace
} // namespace troupe::apps
