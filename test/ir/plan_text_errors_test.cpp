// Errors of the text of plans: each names its place, and what is expected there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "ir/Plan/Text.h"
#include "runtime/base/Text.h"

namespace sheaf::plan_ir {
namespace {

using testing::HasSubstr;

std::string errorOf(const std::string& text) {
  return parseText(text, "f").status().message();
}

// Statements in a program, which begin on line 2.
std::string program(const std::string& statements) {
  return "plan.program {\n" + statements + "\n}\n";
}

TEST(PlanTextErrors, NameTheirPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"plan.bufer", "f:2:1: got 'plan.bufer', expected a declaration such as plan.buffer or plan.body, or '}'"},
      {"plan.launch", "f:2:1: got 'plan.launch', expected a declaration such as plan.buffer or plan.body, or '}'"},
      {"plan.body {\n  plan.buffer", "f:3:3: got 'plan.buffer', expected an instruction such as plan.launch, or '}'"},
      {"%x = plan.buffer \"x\" heap",
       "f:2:22: 'heap' is not one of parameters, gradients, optimizer, gathered, "
       "activations, workspace, constants"},
      {"%x = plan.buffer \"x\" \"heap\"", "f:2:22: got '\"heap\"', expected a word"},
      {"%x = plan.buffer \"x\" gradients at", "f:2:32: got 'at', expected 'in' or 'offset'"},
      {"%x = plan.buffer \"x\" gradients offset 1.5",
       "f:2:39: '1.5' is not a whole number from 0 to 9223372036854775807"},
      {"%x = plan.buffer \"x\" gradients offset -1",
       "f:2:39: '-1' is not a whole number from 0 to 9223372036854775807"},
      {"%x = plan.buffer \"x\" gradients offset x", "f:2:39: got 'x', expected a whole number"},
      {"%x = plan.buffer \"x\" gradients offset 0 bytes 4\n%x = plan.buffer \"y\" gradients offset 0 bytes 4",
       "f:3:1: '%x' is the name of another buffer above, expected a name of its own"},
      {"%x = plan.file \"x\" size 1 hash 1", "f:2:1: a name of a plan.file, expected one of a plan.buffer"},
      {"plan.constant %x source []", "f:2:15: there is no buffer '%x' above, expected the name of one"},
      {"plan.constant x source []", "f:2:15: got 'x', expected the name of a buffer, such as %x"},
      {"plan.file \"x\" size 1 hash 18446744073709551616",
       "f:2:27: '18446744073709551616' is not a whole number from -9223372036854775808 to 18446744073709551615"},
      {"plan.file \"x\" size 1 hash -9223372036854775809",
       "f:2:27: '-9223372036854775809' is not a whole number from -9223372036854775808 to 18446744073709551615"},
      {"plan.scalar step 0.0 group 4294967296", "f:2:28: '4294967296' is not a whole number from 0 to 4294967295"},
      {"plan.scalar step 1.0e999", "f:2:18: '1.0e999' is not a number of 64 bits"},
      {"plan.scalar step 0x", "f:2:18: '0x' is not a number of 64 bits"},
      {"plan.file \"x", "f:2:11: the string does not end on its line, expected '\"'"},
      {"plan.file \"x\\", "f:2:11: the string does not end on its line, expected '\"'"},
      {"plan.file \"ab\\q\"", "f:2:14: an unknown escape, expected \\\\, \\\", \\n, \\t or two hexadecimal digits"},
      {"plan.file \"\\FF\"", "f:2:11: the string is not UTF-8"},
      {"plan.file \"x\" size 1 hash 1 ~", "f:2:29: got '~', which a plan's text has only in strings and comments"},
      {"plan.file \"x\" size 1 hash 1 \x01", "f:2:29: got the byte 0x1, which a plan's text has only in comments"},
      {"plan.constant %",
       "f:2:15: '%' stands alone, expected the name of a buffer: letters, digits, '_', '.', '$' and '-'"},
      {"plan.scalar step 1e999", "f:2:18: '1e999' is not a number of 64 bits"},
      {"plan.scalar step 0.0 group 1e3", "f:2:28: '1e3' is not a whole number from 0 to 4294967295"},
      {"plan.digests \"training\" []\nplan.digests \"files\" []\nplan.digests \"training\" []",
       "f:4:1: plan.digests \"training\" stands here a second time, expected it once"},
      {"plan.body {\n  plan.call \"f\" {\"\\FF\" = 1}() stream 0 \"\"", "f:3:18: the string is not UTF-8"},
      {"plan.digests \"training\" [\"xyz\"]", "f:2:26: '\"xyz\"' is not a hexadecimal number of 64 bits"},
      {"plan.body {}\nplan.body {}", "f:3:1: plan.body stands here a second time, expected it once"},
      {"plan.origin_program \"step\" [\"a\"] hashes []",
       "f:2:41: 0 entries, expected 1: as many as in the list before"},
      {"plan.origin_program \"step\" [] hashes [\"1\"]", "f:2:39: more entries than the list before has, expected 0"},
      {"plan.origin_program \"x\" [] hashes []", "f:2:21: got '\"x\"', expected one of \"step\", \"evaluation\""},
      {"plan.kernel \"k\" rows 4 block 2 bytes [64] access [x]", "f:2:51: 'x' is not one of r, w, rw"},
      {"plan.kernel \"k\" rows 4 block 2 bytes [64", "f:3:1: got '}', expected ',' or ']'"},
      {"plan.parameter \"w\" f32 [1] bucket 0 at 0 permutation [] source [1, 2]",
       "f:2:64: 2 numbers, expected file, offset, length, hashes, or none"},
      {"plan.kernel \"k\" rows 1 block 1 bytes [] attributes {size = 1}",
       "f:2:53: 'size' is not one of operations, ops, padding, program"},
      {"plan.body {\n  plan.transfer to_host() stream 0 \"\"", "f:3:3: plan.transfer with 0 operands, expected 2"},
      {"plan.body {\n  plan.call \"f\" {a = 1, a = 2}() stream 0 \"\"", "f:3:25: 'a' stands here a second time"},
      {"plan.body {\n  plan.call \"f\" {a = \"1\"}() stream 0 \"\"", "f:3:22: got '\"1\"', expected a whole number"},
      {"plan.body {\n  plan.call \"f\" {a = 1.0 : i64}() stream 0 \"\"", "f:3:28: got 'i64', expected 'f64'"},
  };
  for (const auto& [statements, error] : cases) EXPECT_EQ(errorOf(program(statements)), error) << statements;
}

TEST(PlanTextErrors, NameTheirPlaceInTheProgramsAttributes) {
  const std::pair<const char*, const char*> cases[] = {
      {"rank = 1", "f:1:26: 'rank' is not one of batch, by_kind, communicator_axes, "},
      {"ranks = 1, ranks = 1", "f:1:37: 'ranks' stands here a second time"},
      {"ranks = 1 : f64", "f:1:38: got 'f64', expected 'i64'"},
      {"ranks = 1", "f:1:34: got '}', expected ',' or '}'"},
      {"zero = 2147483648", "f:1:33: '2147483648' is not a whole number from -2147483648 to 2147483647"},
      {"floor = {products = {bf17 = 1}}", "f:1:47: there are no products of type 'bf17'"},
      {"floor = {state = 1}", "f:1:35: 'state' is not one of gathered_bytes, products, reduced_bytes, state_bytes"},
      {"floor = {products = {f32 = -1}}", "f:1:53: '-1' is not a whole number from 0 to 9223372036854775807"},
      {"floor = {reduced_bytes = \"many\"}", "f:1:51: got '\"many\"', expected a whole number"},
      {"training = {on_nan = #plan<on_nan pray>}", "f:1:60: 'pray' is not one of stop, skip"},
      {"training = {on_nan = \"skip\"}", "f:1:47: got '\"skip\"', expected '#'"},
      {"training = {schedule = \"cosin\"}", "f:1:49: "},
      {"training = {loss_scale = \"none\"}", "f:1:51: a loss scale of 'none' is left out"},
      {"dealing = \"by_rank\"", "f:1:26: 'dealing' without 'micro_batches', expected both"},
      {"micro_batches = 2, dealing = \"by_chance\"", "f:1:55: '\"by_chance\"' is not one of by_micro_batch, by_rank"},
      {"micro_batches = 2, turns = array<i64: 1>", "f:1:53: 1 numbers, expected part, micro_batch of each"},
      {"by_kind = {heap = 1}", "f:1:37: 'heap' is not one of parameters, gradients, "},
      {"spaces = {host = {}}", "f:1:43: expected 'peak_bytes' in it"},
  };
  for (const auto& [attributes, error] : cases) {
    const bool isOpen = std::string_view(attributes) == "ranks = 1";
    EXPECT_THAT(errorOf(cat("plan.program attributes {", attributes, isOpen ? "" : "}", " {\n}\n")),
                testing::StartsWith(isOpen ? "f:1:36: got '{', expected ',' or '}'" : error))
        << attributes;
  }
}

TEST(PlanTextErrors, NameBytesThatNoTextHas) {
  EXPECT_EQ(errorOf(program(std::string("plan.file \"x\0\"", 14))),
            "f:2:13: the byte 0x0 in a string, expected \"\\00\"");
  EXPECT_EQ(errorOf("\xEF\xBB\xBFplan.program {}"),
            "f:1:1: the text begins with a byte order mark: save it as UTF-8 without one");
}

TEST(PlanTextErrors, EndLongAndDeepTexts) {
  constexpr size_t kLong = 100 << 20;
  EXPECT_EQ(errorOf(std::string(kLong, '[')), "f:1:1: got '[', expected 'plan.program'");
  EXPECT_THAT(errorOf(std::string(kLong, 'a')), HasSubstr("f:1:1: got 'aaaaaaaa"));
  EXPECT_LT(errorOf(std::string(kLong, 'a')).size(), 100u);
  EXPECT_THAT(errorOf("plan.program attributes {producer = \"" + std::string(kLong, 'a')), HasSubstr("f:1:37: "));
  EXPECT_THAT(errorOf("plan.program attributes {streams = " + std::string(kLong, '[')), HasSubstr("f:1:37: got '['"));
  EXPECT_THAT(errorOf("plan.program attributes {ranks = " + std::string(kLong, '1')), HasSubstr("f:1:34: '1111"));
  std::string modules;
  for (int i = 0; i < 1 << 20; ++i) modules += "module {";
  EXPECT_THAT(errorOf(modules), HasSubstr("got the end of the text, expected '}'"));
}

}  // namespace
}  // namespace sheaf::plan_ir
