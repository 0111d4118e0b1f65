// Budgets, load errors and error texts of chat templates: none of these may hang, exhaust the stack or grow without bound.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tokenizer/chat_template.hpp"

namespace troupe {
namespace {

using testing::HasSubstr;

std::string repeated(std::string_view text, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

std::string load_message(std::string_view source) {
  try {
    chat_template(source, "model.gguf");
  } catch (const load_error& e) {
    return e.what();
  }
  return "loaded";
}

// Slow builds must meet the same budget as fast ones, so the clock is out of the way unless a test is about it.
constexpr template_limits kPatient{.max_time = std::chrono::minutes(5)};

result<std::string> render(std::string_view source, value_object variables = {}, template_limits limits = kPatient) {
  return chat_template(source, "test", limits).render(value(std::move(variables)), 0);
}

std::string failure_of(std::string_view source, value_object variables = {}, template_limits limits = kPatient) {
  const auto text = render(source, std::move(variables), limits);
  return text ? "rendered " + text->substr(0, 100) : text.failure().message;
}

TEST(ChatTemplateLoad, SyntaxErrorsNameTheTemplateAndTheLine) {
  EXPECT_EQ(load_message("a\n\n{% if x %}"), "model.gguf: chat template, line 3: a block without its 'endif'");
  EXPECT_THAT(load_message("{{ 1 +\n+ }}"), HasSubstr("line 2"));
  EXPECT_THAT(load_message("\r\n\r\n{{ a b }}"), HasSubstr("line 3"));
  EXPECT_THAT(load_message("{{ 'open }}"), HasSubstr("string without an end"));
}

TEST(ChatTemplateLoad, UnknownConstructsAreRefusedEvenWhereTheyWouldNotRun) {
  EXPECT_THAT(load_message("{% if false %}\n{{ x | nosuch }}{% endif %}"), HasSubstr("line 2: unknown filter 'nosuch'"));
  EXPECT_THAT(load_message("{% if x is nosuch %}{% endif %}"), HasSubstr("unknown test 'nosuch'"));
  EXPECT_THAT(load_message("{% include 'a' %}"), HasSubstr("unknown tag 'include'"));
  EXPECT_THAT(load_message("{% for x in y recursive %}{% endfor %}"), HasSubstr("recursive loops are not supported"));
  EXPECT_THAT(load_message("{{ '\\N{DIGIT ONE}' }}"), HasSubstr("\\N"));
  EXPECT_THAT(load_message("{{ 99999999999999999999 }}"), HasSubstr("integer too large"));
  EXPECT_THAT(load_message("{% break %}"), HasSubstr("outside a loop"));
}

TEST(ChatTemplateLoad, SourceThatIsNotUtf8StillLoads) { EXPECT_EQ(*render("a\xFF{{ 'b\xC3' }}"), "a\uFFFDb\uFFFD"); }

// Source nested 20,000 levels deep in each way that the grammar allows.
TEST(ChatTemplateLoad, DeepNestingIsAnErrorAndNeverExhaustsTheStack) {
  constexpr std::size_t deep = 20'000;
  const std::string openers[] = {"(",         "[",    "{1:",    "not ", "-",        "+",     "f(", "x[", "a if b else ",
                                 "1 is eq (", "x|f(", "x.y(z=", "[(",   "'%s' % (", "1 if ("};
  for (const std::string& opener : openers) {
    EXPECT_THAT(load_message("{{ " + repeated(opener, deep) + " }}"), HasSubstr("model.gguf: chat template")) << opener;
  }
  EXPECT_THAT(load_message("{% for " + repeated("(", deep) + "x in y" + repeated(")", deep) + " %}"), HasSubstr("nested deeper"));
  for (const char* tag : {"{% if 1 %}", "{% for x in y %}", "{% filter upper %}", "{% set x %}", "{% with %}", "{% macro m() %}",
                          "{% generation %}", "{% call m() %}"}) {
    EXPECT_THAT(load_message(repeated(tag, deep)), HasSubstr("nested deeper")) << tag;
  }
}

// Chains are no nesting: their length is bounded by the steps alone.
TEST(ChatTemplateLoad, LongChainsAreFlat) {
  constexpr std::size_t count = 20'000;
  EXPECT_EQ(*render("{{ 1" + repeated(" + 1", count) + " }}"), std::to_string(count + 1));
  EXPECT_EQ(*render("{{ 'a'" + repeated("|upper", count) + " }}"), "A");
  EXPECT_EQ(*render("{{ x" + repeated(".x", 0) + repeated(" or x", count) + " }}"), "");
  EXPECT_EQ(*render("{% if x %}" + repeated("{% elif x %}", count) + "{% else %}y{% endif %}"), "y");
  EXPECT_EQ(render("{{ 'a'" + repeated(" ~ 'a'", count) + " }}")->size(), count + 1);
  EXPECT_EQ(*render("{{ 1" + repeated(" < 2 > 1", count) + " }}"), "True");
}

TEST(ChatTemplateBudget, EndlessWorkIsStopped) {
  const std::string work[] = {
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{% for a in range(10000) %}{% for b in range(10000) %}{{ a }}{% endfor %}{% endfor %}",
      "{% for a in range(100000) %}{{ 'x' * 16000000 }}{% endfor %}",
      "{% set s = 'x' * 8000000 %}{% for a in range(100000) %}{% set t = s|upper %}{% endfor %}",
      "{% set s = 'é' * 4000000 %}{% for a in range(100000) %}{% set t = s[a] %}{% endfor %}",
      "{% set s = 'a' * 1000000 %}{{ s.count('a' * 500000 ~ 'b') }}{% for a in range(100000) %}{% set t = s.rfind('a' * 10000) %}{% endfor "
      "%}",
      "{% set l = range(100000)|list %}{% for a in l %}{% set t = l + l %}{% endfor %}",
      "{% set l = range(100000)|list %}{% for a in l %}{% set t = -1 in l %}{% endfor %}",
      "{% set l = range(100000)|map('string')|list %}{% for a in l %}{% set t = l|sort %}{% endfor %}",
      "{{ [0] * 10000000 }}",
      "{% set s = 'a' * 3000000 %}{{ s|list|length }}",
      "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
      "{% set ns = namespace(l=[1], k=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% set ns.k = [ns.k, ns.k] %}{% endfor "
      "%}{{ ns.l == ns.k }}",
  };
  for (const std::string& source : work) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THAT(failure_of(source, {}, {.max_time = std::chrono::milliseconds(500)}),
                testing::AnyOf(HasSubstr("it takes"), HasSubstr("longer than"), HasSubstr("nested too deeply")))
        << source;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5)) << source;
  }
}

TEST(ChatTemplateBudget, TextThatWouldBeTooLongIsNeverMade) {
  const std::string work[] = {
      "{{ 'x' * 10 ** 9 }}",
      "{{ 'xy' * 9223372036854775807 }}",
      "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
      "{{ ('a' * 1000000).replace('', 'b' * 1000000) }}",
      "{{ ('a' * 5000)|list|join('b' * 1000000) }}",
      "{{ 'a'.center(10 ** 12) }}",
      "{{ 'a'.ljust(9223372036854775807) }}",
      "{{ 'a'.zfill(9223372036854775807) }}",
      "{{ 'a'|center(9223372036854775807) }}",
      "{{ '%2000000000d' % 1 }}",
      "{{ '{:2000000000}'.format(1) }}",
      "{{ '%*d' % (9223372036854775807, 1) }}",
      "{{ ('a\\n' * 100000)|indent(1000000) }}",
      "{{ [[[1]]]|tojson(indent=9223372036854775807) }}",
      "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      "{% set ns = namespace(l=['x']) %}{% for i in range(64) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
      "{% set ns = namespace(l=['x']) %}{% for i in range(64) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson }}",
      "{% set s = 'x' * 1000000 %}{% for i in range(100) %}{{ s }}{% endfor %}",
  };
  for (const std::string& source : work) {
    EXPECT_THAT(failure_of(source), testing::AnyOf(HasSubstr("makes a text longer than"), HasSubstr("it takes more than"))) << source;
  }
}

TEST(ChatTemplateBudget, TheBudgetsAreTheCallersOwn) {
  EXPECT_THAT(failure_of("{% for i in range(100) %}{{ i }}{% endfor %}", {}, {.max_steps = 50}), HasSubstr("more than 50 steps"));
  EXPECT_THAT(failure_of("{{ 'abc' * 4 }}", {}, {.max_output = 10}), HasSubstr("longer than 10 bytes"));
  EXPECT_THAT(failure_of("{% for i in range(100000) %}{{ i }}{% endfor %}", {}, {.max_time = std::chrono::milliseconds(0)}),
              HasSubstr("longer than 0 ms"));
  EXPECT_THROW(chat_template("{{ ((((1)))) }}", "x", {.max_depth = 3}), load_error);
  value_object big;
  big.set("s", std::string(100, 'x'));
  EXPECT_THAT(failure_of("{{ s }}", big, {.max_output = 10}), HasSubstr("longer than 10 bytes"));
}

TEST(ChatTemplateDepth, RecursionAndSelfReferenceNeverExhaustTheStack) {
  EXPECT_THAT(failure_of("{% macro f(x) %}{{ f([x]) }}{% endmacro %}{{ f(1) }}"), HasSubstr("nested too deeply"));
  EXPECT_THAT(
      failure_of(
          "{% macro f() %}{% if true %}{% for i in [1] %}{% if (((f()))) %}{% endif %}{% endfor %}{% endif %}{% endmacro %}{{ f() }}"),
      HasSubstr("nested too deeply"));
  EXPECT_THAT(failure_of("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}"), HasSubstr("contains itself"));
  EXPECT_THAT(failure_of("{% set a = namespace() %}{% set b = namespace(a=[a]) %}{% set a.b = {'b': b} %}{{ a }}"),
              HasSubstr("contains itself"));
  EXPECT_THAT(failure_of("{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}"),
              HasSubstr("nested too deeply"));
  EXPECT_THAT(failure_of("{% set ns = namespace(l={}) %}{% for i in range(100000) %}{% set ns.l = {'a': ns.l} %}{% endfor %}"),
              HasSubstr("nested too deeply"));
  EXPECT_THAT(failure_of("{% set ns = namespace(l=joiner) %}{% for i in range(100000) %}{% set ns.l = ns.l ~ '' %}{% set ns.k = [ns.k.get "
                         "if ns.k else 1] %}{% endfor %}"),
              testing::Not(""));
  EXPECT_TRUE(render("{% set ns = namespace(last=none) %}{% for i in range(100000) %}{% for j in [ns.last] %}{% set ns.last = loop %}{% "
                     "endfor %}{% endfor %}ok")
                  .has_value());
  EXPECT_TRUE(
      render("{% set ns = namespace() %}{% for i in range(1000) %}{% macro m() %}{{ i }}{% endmacro %}{% set ns.m = m %}{% endfor %}ok")
          .has_value());
}

TEST(ChatTemplateDepth, VariablesNestedTooDeeplyAreAnError) {
  value deep;
  for (int i = 0; i < 5000; ++i) {
    value_array outer;
    outer.push_back(std::move(deep));
    deep = value(std::move(outer));
  }
  value_object variables;
  variables.set("x", deep);
  EXPECT_THAT(failure_of("{{ x }}", variables), HasSubstr("nested too deeply"));
  EXPECT_EQ(*render("no use of it", variables), "no use of it");
}

TEST(ChatTemplateErrors, TheTemplatesOwnMessageReachesTheClient) {
  const auto text = render("{{ raise_exception('System role not supported') }}");
  ASSERT_FALSE(text.has_value());
  EXPECT_EQ(text.failure().kind, error_kind::invalid_request);
  EXPECT_EQ(text.failure().param, "messages");
  EXPECT_EQ(text.failure().message, "System role not supported");
}

TEST(ChatTemplateErrors, FaultsNameTheLineAndTheReason) {
  EXPECT_EQ(failure_of("\n{{ messages[0]['role'] }}"), "the chat template failed in line 2: 'messages' is undefined");
  EXPECT_EQ(failure_of("{{ 'a' + 1 }}"), "the chat template failed in line 1: unsupported operand types for +: 'str' and 'int'");
  EXPECT_THAT(failure_of("{% set x = {} %}\n\n{{ x.y.z }}"), HasSubstr("line 3: 'dict object' has no attribute 'y'"));
}

TEST(ChatTemplateErrors, MessagesAreShortAndValidUtf8) {
  value_object variables;
  variables.set("s", "\xC3\xA9\xFF" + repeated("é", 10'000));
  const std::string message = failure_of("{{ raise_exception(s) }}", variables);
  EXPECT_LT(message.size(), 2000U);
  EXPECT_THAT(message, testing::StartsWith("\xC3\xA9\xEF\xBF\xBD"));
}

// Templates look at names that the client chose; what says that one is missing is kept, so it must not grow with the name.
TEST(ChatTemplateErrors, AMissingAttributesMessageDoesNotGrowWithTheName) {
  value_object variables;
  variables.set("s", "a" + repeated("é", 10'000));
  const std::string message = failure_of("{% set x = {} %}{{ x[s].y }}", variables);
  EXPECT_LT(message.size(), 200U);
  EXPECT_THAT(message, HasSubstr("has no attribute 'a" + repeated("é", 31) + "..'"));
}

TEST(ChatTemplateErrors, OneFailureLeavesTheNextRequestUnharmed) {
  const chat_template source("{% if x is string %}{{ raise_exception('no') }}{% endif %}{{ x }}", "test");
  value_object bad, good;
  bad.set("x", "text");
  good.set("x", 5);
  EXPECT_FALSE(source.render(value(bad), 0).has_value());
  EXPECT_EQ(*source.render(value(good), 0), "5");
}

TEST(ChatTemplateClock, StrftimeTakesOnlyHarmlessDirectives) {
  EXPECT_EQ(*render("{{ strftime_now('%Y-%m-%d') }}"), "1970-01-01");
  EXPECT_THAT(failure_of("{{ strftime_now('%99999999Y') }}"), HasSubstr("unknown directive"));
  EXPECT_THAT(failure_of("{{ strftime_now('%') }}"), HasSubstr("unknown directive"));
}

} // namespace
} // namespace troupe
