// The command by which a running process is told to upgrade: what is said comes back, and what cannot be is refused with the reason.
#include <gtest/gtest.h>

#include "apps/admin/upgrade_command.hpp"

namespace troupe::apps {
namespace {

TEST(UpgradeCommand, WhatIsSaidIsHeard) {
  for (const upgrade_command& said : {upgrade_command{}, upgrade_command{std::chrono::seconds(1), "/a b/troupe  new"},
                                      upgrade_command{std::chrono::seconds(86400), "/troupe"}}) {
    const auto heard = parse_upgrade_command(to_text(said));
    ASSERT_TRUE(std::holds_alternative<upgrade_command>(heard)) << std::get<std::string>(heard);
    EXPECT_EQ(std::get<upgrade_command>(heard).path, said.path);
    EXPECT_EQ(std::get<upgrade_command>(heard).start_deadline, said.start_deadline);
  }
}

TEST(UpgradeCommand, ADeadlineOutsideItsBoundsIsRefusedWithThem) {
  for (const std::string number : {"0", "-1", "86401", "99999999999999999999999", "1.5", "1h", "/troupe"}) {
    const auto heard = parse_upgrade_command("upgrade " + number + " /troupe");
    ASSERT_TRUE(std::holds_alternative<std::string>(heard)) << number;
    EXPECT_EQ(std::get<std::string>(heard), "upgrade: the deadline of a start is 1 to 86400 seconds, not \"" + number + "\"");
  }
}

TEST(UpgradeCommand, OtherWordsAreNotKnown) {
  for (const char* text : {"", "upgrade", "downgrade 60 /troupe", "60"}) {
    const auto heard = parse_upgrade_command(text);
    ASSERT_TRUE(std::holds_alternative<std::string>(heard)) << text;
    EXPECT_NE(std::get<std::string>(heard).find("does not know"), std::string::npos);
  }
}

} // namespace
} // namespace troupe::apps
