// Printing for people: names in what is printed may come from files and from other programs.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace sheaf {

// Text that is not ours (names in files, words of other processes) as a terminal may show it: control characters but
// line ends and tabs, characters that change the direction of writing, and bytes that are not UTF-8 become "\x1b". Text
// without them stays as it is.
std::string shown(std::string_view text);
// The same in one line.
std::string shownLine(std::string_view text);
// Escapes a message and indents all lines after the first, so that none can pass for another message.
std::string shownMessage(std::string_view text);

// The UTF-8 character at a place of a text; `code` is -1 where the byte there begins none.
struct Character {
  size_t bytes = 1;
  int32_t code = -1;
  // It controls a terminal or the direction of writing.
  bool controls() const;
};
Character characterAt(std::string_view text, size_t at);

namespace out {

// Like the functions of <cstdio>, and print what shown() makes of the text. They remove a drawn line first.
int printf(const char* format, ...) __attribute__((format(printf, 1, 2)));
int fprintf(std::FILE* file, const char* format, ...) __attribute__((format(printf, 2, 3)));

// The width of the terminal that stderr is; 80 if it is none.
size_t terminalColumns();
// Draws a line without an end on the terminal that stderr is, in place of the one drawn before. It is cut to the
// terminal's width, because a wrapped line cannot be redrawn.
void drawLine(std::string_view text);
// Removes the drawn line, if there is one. To be called before text is printed by other functions than the above.
void clearLine();

}  // namespace out
}  // namespace sheaf
