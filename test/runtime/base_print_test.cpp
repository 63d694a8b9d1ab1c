// Text of files and of other programs cannot control a terminal.
#include "runtime/base/Print.h"

#include <gtest/gtest.h>

#include "runtime/base/Json.h"

namespace sheaf::testing {
namespace {

TEST(Print, ControlCharactersAreShown) {
  const std::pair<std::string_view, const char*> cases[] = {
      {"a name", "a name"},
      {"two\nlines\tand a tab", "two\nlines\tand a tab"},
      {"\x1b]0;owned\a", R"(\x1b]0;owned\x07)"},
      {"\r\b\x7f", R"(\x0d\x08\x7f)"},
      {{"nul\0", 4}, R"(nul\x00)"},
      {"\xc2\x9b"
       "2J",
       R"(\xc2\x9b2J)"},                                                                 // a control sequence of C1
      {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"},  // ä, €, a smiley
      {"\xe2\x80\xae", R"(\xe2\x80\xae)"},                                               // text from right to left
      {"\xff\xfe", R"(\xff\xfe)"},
      {"\xc3", R"(\xc3)"},                          // ends within a character
      {"\xc0\xaf", R"(\xc0\xaf)"},                  // an overlong form
      {"\xed\xa0\x80", R"(\xed\xa0\x80)"},          // a surrogate
      {"\xf4\x90\x80\x80", R"(\xf4\x90\x80\x80)"},  // beyond Unicode
      {"\xe2\x82"
       "a",
       R"(\xe2\x82a)"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(shown(text), expected);
    EXPECT_EQ(shown(shown(text)), expected) << "shown twice";
  }
  EXPECT_EQ(shownLine("two\nlines\tand"), R"(two\x0alines\x09and)");
}

// Every byte, alone and before an ASCII character: what is shown has none that a terminal treats as a command.
TEST(Print, NothingElseControls) {
  for (int byte = 0; byte < 256; ++byte)
    for (const char* after : {"", "x", "\x9b"})
      for (const char c : shown(std::string(1, static_cast<char>(byte)) + after)) {
        const auto u = static_cast<uint8_t>(c);
        EXPECT_TRUE(u == '\n' || u == '\t' || (u >= 0x20 && u != 0x7f)) << byte;
        EXPECT_TRUE(u < 0x80 || byte >= 0xc2) << byte;
      }
}

TEST(Print, PrintfShowsItsArguments) {
  std::FILE* file = std::tmpfile();
  ASSERT_TRUE(file);
  EXPECT_EQ(out::fprintf(file, "%-6s|%d\n", "\x1b[2J", 7), 12);
  std::rewind(file);
  char text[64] = "";
  ASSERT_TRUE(std::fgets(text, sizeof text, file));
  EXPECT_STREQ(text, "\\x1b[2J  |7\n");
  std::fclose(file);
}

// JSON stays JSON when it is printed: shown() finds nothing in it, and the text comes back.
TEST(Print, JsonEscapesWhatIsShown) {
  const std::string text = "\x1b\x7f\xc2\x9b\xe2\x80\xae\xc3\xa4\n\"\\";
  const std::string written = json::write(json::Value(text));
  EXPECT_EQ(written, R"("\u001b\u007f\u009b\u202e)"
                     "\xc3\xa4"
                     R"(\n\"\\")");
  EXPECT_EQ(shown(written), written);
  auto read = json::parse(written);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read->string(), text);
}

}  // namespace
}  // namespace sheaf::testing
