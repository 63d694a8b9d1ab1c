// A table of options: what its parser takes and refuses, and what its help says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "test/TemporaryFolder.h"
#include "tools/options/Completion.h"
#include "tools/options/Manual.h"
#include "tools/options/Rows.h"

namespace sheaf::options {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

enum class Color { kRed, kGreen };

struct Inner {
  int64_t count = 4;
};

struct Settings {
  std::string input, name = "none";
  Inner inner;
  std::optional<double> rate;
  uint64_t size = 0;
  Color color = Color::kGreen;
  std::vector<std::string> labels, inputs;
  bool loud = false, safe = true;
};

using Row = Rows<Settings>;

Table table() {
  Table made{"tool", "Does something.", {"tool INPUT [options]"}, Row::positional<&Settings::input>("INPUT"), {}, ""};
  made.sections = {
      {"First",
       {Row::integer<&Settings::inner, &Inner::count>("--count", "N", 1, 9, "How many."),
        Row::real<&Settings::rate>("--rate", "X", 0, true, "How fast.").defaultsTo("as fast as it goes"),
        Row::bytes<&Settings::size>("--size", "How large."),
        Row::choice<&Settings::color>("--color", Words<Color>{{"red", Color::kRed}, {"green", Color::kGreen}},
                                      "Which."),
        Row::text<&Settings::labels>("--label", "TEXT", "A label.")}},
      {"Second",
       {Row::flag<&Settings::loud>("--loud", "Make noise."), Row::flag<&Settings::safe>("--unsafe", "Take risks."),
        Row::text<&Settings::name>("--name", "NAME", "Its name.")}}};
  made.modes = {{"--loud", {"--name"}}};
  return made;
}

std::string refusal(const Arguments& arguments) {
  Settings settings;
  return table().parse(arguments, &settings).status().message();
}

TEST(Options, EndAtTwoDashes) {
  for (const char* path : {"--help", "--loud", "-x", "--", "--version"}) {
    Settings s;
    const auto given = table().parse({"--count", "3", "--", path}, &s);
    ASSERT_TRUE(given.ok()) << given.status().message();
    EXPECT_FALSE(given->help || given->version);
    EXPECT_EQ(s.input, path);
    EXPECT_FALSE(s.loud);
  }
  EXPECT_THAT(refusal({"--", "a", "--count"}), HasSubstr("one INPUT at a time: 'a' and '--count'"));
  EXPECT_THAT(refusal({"--"}), HasSubstr("no INPUT is given"));
}

TEST(Options, GoWhereTheirRowsSay) {
  Settings s;
  auto given = table().parse({"in", "--count=7", "--rate", "0.5", "--size", "2KiB", "--color", "red", "--label", "a",
                              "--label=b=c", "--unsafe"},
                             &s);
  ASSERT_TRUE(given.ok()) << given.status().message();
  EXPECT_EQ(s.input, "in");
  EXPECT_EQ(s.inner.count, 7);
  EXPECT_EQ(s.rate, 0.5);
  EXPECT_EQ(s.size, 2048u);
  EXPECT_EQ(s.color, Color::kRed);
  EXPECT_THAT(s.labels, ElementsAre("a", "b=c"));
  EXPECT_FALSE(s.safe);
  EXPECT_FALSE(s.loud);
  EXPECT_EQ(s.name, "none");
  EXPECT_TRUE(given->has("--count"));
  EXPECT_FALSE(given->has("--name"));
}

TEST(Options, ArgumentsMayBeAList) {
  Table list{"tool", "Does something.", {"tool INPUT..."}, Row::positional<&Settings::inputs>("INPUT"), {}, ""};
  Settings s;
  ASSERT_TRUE(list.parse({"a", "b", "c"}, &s).ok());
  EXPECT_THAT(s.inputs, ElementsAre("a", "b", "c"));
  Settings none;
  EXPECT_THAT(list.parse({}, &none).status().message(), HasSubstr("no INPUT is given"));
}

TEST(Options, ValuesAreKeptAsTheyWereWritten) {
  Settings s;
  auto given = table().parse({"in", "--size", "2KiB", "--label", "a", "--label=b=c", "--unsafe"}, &s);
  ASSERT_TRUE(given.ok());
  EXPECT_THAT(given->values.at("--size"), ElementsAre("2KiB"));
  EXPECT_THAT(given->values.at("--label"), ElementsAre("a", "b=c"));
  EXPECT_THAT(given->values.at("--unsafe"), ElementsAre(""));
  EXPECT_EQ(given->values.count("--count"), 0u);
  for (const Option& option : table().all()) {
    EXPECT_FALSE(option.bits);
    if (option.name == "--size") {
      EXPECT_TRUE(option.same("2KiB", "2048"));
      EXPECT_FALSE(option.same("2KiB", "2047"));
    }
  }
  EXPECT_TRUE(Row::flag<&Settings::loud>("--loud", "").decidesBits().bits);
}

TEST(Options, ErrorsNameTheOptionAndWhatItTakes) {
  EXPECT_EQ(refusal({"in", "--count", "10"}), "--count 10: expected an integer from 1 to 9");
  EXPECT_EQ(refusal({"in", "--count", "x"}), "--count x: expected an integer from 1 to 9");
  EXPECT_EQ(refusal({"in", "--rate", "0"}), "--rate 0: expected a number above 0");
  EXPECT_THAT(refusal({"in", "--rate", "1e39"}), HasSubstr("1e+39 is beyond the largest number of f32"));
  EXPECT_EQ(refusal({"in", "--size", "0"}),
            "--size 0: expected a size in bytes, such as 24GiB or 80GB; at least 1 byte is needed");
  EXPECT_THAT(refusal({"in", "--size", "16G"}), HasSubstr("'G' is not one of the units KiB, MiB, GiB, TiB"));
  EXPECT_EQ(refusal({"in", "--color", "blue"}), "--color blue: expected one of red, green");
  EXPECT_EQ(refusal({"in", "--name="}), "--name: expected NAME");
  EXPECT_EQ(refusal({"in", "--count"}), "--count needs a value: an integer from 1 to 9");
  EXPECT_EQ(refusal({"in", "--name", "--loud"}), "--name needs a value: NAME");
  EXPECT_EQ(refusal({"in", "--count", "1", "--count=2"}),
            "--count is given twice; it takes one value, an integer from 1 to 9");
  EXPECT_EQ(refusal({"in", "--unsafe", "--unsafe"}), "--unsafe is given twice");
  EXPECT_EQ(refusal({"in", "--unsafe=no"}), "--unsafe takes no value");
  EXPECT_EQ(refusal({"in", "--cuont", "1"}), "unknown option --cuont; did you mean --count?");
  EXPECT_EQ(refusal({"in", "--xyzzyplugh"}), "unknown option --xyzzyplugh; see tool --help");
  EXPECT_EQ(refusal({}), "no INPUT is given; usage: tool INPUT [options]");
  EXPECT_EQ(refusal({"in", "out"}), "one INPUT at a time: 'in' and 'out'");
  EXPECT_EQ(refusal({"in", "--loud", "--unsafe"}), "--unsafe cannot be combined with --loud; these can: --name");
}

TEST(Options, RequiredOnesAreAskedFor) {
  Table asking = table();
  asking.sections[0].options[0].whenMissing = "how many are there?";
  for (const Arguments& without : {Arguments{"in"}, Arguments{"in", "--name", "this", "--size", "1KiB"}}) {
    Settings settings;
    EXPECT_EQ(asking.parse(without, &settings).status().message(), "--count N is missing: how many are there?");
  }
  Settings settings;
  EXPECT_TRUE(asking.parse({"in", "--name", "this", "--count", "3"}, &settings).ok());
}

Table writing() {
  Table made{"tool", "Writes.", {"tool IN.plan"}, Row::positional<&Settings::input>("IN.plan"), {}, ""};
  made.sections = {{"Files",
                    {Row::text<&Settings::name>("-o", "OUT.a|OUT.plan", "Write.").writes({"a", "plan"}),
                     Row::text<&Settings::labels>("--data", "NAME=FILE", "Read."),
                     Row::text<&Settings::inputs>("--log", "LOG.json", "Write.").writes([](const Given& given) {
                       return std::vector<std::string>{given.has("--loud") ? "html" : "json"};
                     }),
                     Row::text<&Settings::inputs>("--word", "WORD", "Neither."),
                     Row::flag<&Settings::loud>("--loud", "Make noise.")}}};
  made.sections[0].options[1].repeats = made.sections[0].options[2].repeats = true;
  return made;
}

TEST(Options, FilesToWriteAreNotThoseToRead) {
  namespace fs = std::filesystem;
  const testing::TemporaryFolder folder;
  fs::create_directories(folder / "deep");
  auto at = [&](const std::string& name) { return folder / name; };
  std::ofstream(at("in")) << "in";
  std::ofstream(at("rows")) << "rows";
  fs::create_symlink("in", at("soft"));
  fs::create_hard_link(at("in"), at("hard"));
  fs::create_symlink(".", at("around"));
  auto refusal = [](const Arguments& arguments) {
    Settings settings;
    return writing().parse(arguments, &settings).status().message();
  };
  for (const char* name : {"in", "./in", "deep/../in", "around/in", "soft", "hard", "around/soft"})
    EXPECT_EQ(refusal({at("in"), "-o", at(name)}),
              "-o " + at(name) + " is the file of IN.plan, which is read: give another name");
  EXPECT_THAT(refusal({at("soft"), "-o", at("hard")}), HasSubstr("which is read"));
  for (const std::string& value : {"x=" + at("rows"), "x,y=" + at("rows") + ":u16"})
    EXPECT_THAT(refusal({at("in"), "--data", value, "-o", at("rows")}), HasSubstr("the file of --data, which is read"));
  EXPECT_THAT(refusal({at("in"), "-o", at("new"), "--log", at("deep/../new")}), HasSubstr("the file of -o, too"));
  EXPECT_THAT(refusal({at("in"), "--log", at("new"), "--log", at("new")}), HasSubstr("the file of --log, too"));
  // No other option's value is a file; neither is what is not regular.
  EXPECT_EQ(refusal({at("in"), "--word", at("rows"), "-o", at("rows")}), "");
  EXPECT_EQ(refusal({at("in"), "-o", "/dev/null", "--log", "/dev/null"}), "");
  EXPECT_EQ(refusal({at("in"), "-o", "-"}), "");
}

TEST(Options, NamesOfFilesSayTheirFormat) {
  auto refusal = [](const Arguments& arguments) {
    Settings settings;
    return writing().parse(arguments, &settings).status().message();
  };
  EXPECT_EQ(refusal({"in", "-o", "w.pt"}),
            "-o w.pt: .pt says another format than the one that is written; give a name that ends in .a, .plan");
  for (const char* wrong : {"x.onnx", "x.safetensors", "x.PT", "folder.plan/x.npy", "x.plan.json"})
    EXPECT_THAT(refusal({"in", "-o", wrong}), HasSubstr("another format")) << wrong;
  for (const char* right : {"x.a", "x.plan", "x.PLAN", "x", "x.v1.2", "folder.onnx/x", ".json", "x.best"})
    EXPECT_EQ(refusal({"in", "-o", right}), "") << right;
  EXPECT_EQ(refusal({"in", "--log", "x.json"}), "");
  EXPECT_THAT(refusal({"in", "--log", "x.json", "--loud"}), HasSubstr("ends in .html"));
  EXPECT_THAT(refusal({"in", "-o", std::string(300, 'a')}),
              HasSubstr("-o: File name too long: the path has 300 bytes"));
}

TEST(Options, HelpIsNotParsedFurther) {
  Settings settings;
  EXPECT_EQ(table().parse({"--help", "--nonsense"}, &settings)->help, HelpForm::kText);
  EXPECT_EQ(table().parse({"in", "-h"}, &settings)->help, HelpForm::kShort);
  EXPECT_EQ(table().parse({"--help=markdown"}, &settings)->help, HelpForm::kMarkdown);
  EXPECT_EQ(table().parse({"--help=man"}, &settings)->help, HelpForm::kManual);
  EXPECT_THAT(refusal({"--help=html"}), HasSubstr("markdown, man, bash, zsh"));
  // Completion is that of a program, not of one of its commands.
  EXPECT_EQ(refusal({"--help=bash"}), "--help=bash is an option of tool itself");
  Table program = table();
  program.versioned = true;
  EXPECT_EQ(program.parse({"--help=bash"}, &settings)->help, HelpForm::kBash);
  EXPECT_EQ(program.parse({"--help=zsh"}, &settings)->help, HelpForm::kZsh);
  EXPECT_THAT(refusal({"in", "--version"}), HasSubstr("unknown option --version"));
}

TEST(Options, HelpHasSyntaxRangeAndDefault) {
  const std::string help = table().help();
  EXPECT_THAT(help, HasSubstr("Does something.\n\nusage: tool INPUT [options]\n\nFirst\n"));
  EXPECT_THAT(help, HasSubstr("  --count N               How many. (1 to 9; default: 4)\n"));
  EXPECT_THAT(help, HasSubstr("  --rate X                How fast. (above 0; default: as fast as it goes)\n"));
  EXPECT_THAT(help, HasSubstr("  --color red|green       Which. (default: green)\n"));
  EXPECT_THAT(help, HasSubstr("  --label TEXT            A label. (may be given several times)\n"));
  EXPECT_THAT(help, HasSubstr("  --loud                  Make noise. (can be combined only with --name)\n"));
  EXPECT_THAT(help, HasSubstr("  --unsafe                Take risks.\n"));
  EXPECT_THAT(help, Not(HasSubstr("--version")));
  EXPECT_THAT(table().markdown(), HasSubstr("| `--color red\\|green` | Which. | default: green |\n"));
}

TEST(Options, ManualHasEveryOptionEscaped) {
  Table dotted = table();
  dotted.notes = ".5 is a `half`.\n\nC:\\ is a path.";
  const std::string page = dotted.manual("1.2", {"other", "more"});
  EXPECT_THAT(page, HasSubstr(".TH TOOL 1 \"\" \"Sheaf 1.2\"\n.SH NAME\ntool \\- does something\n"));
  EXPECT_THAT(page, HasSubstr(".TP\n\\fB\\-\\-count\\fR \\fIN\\fR\nHow many. (1 to 9; default: 4)\n"));
  EXPECT_THAT(page, HasSubstr(".SH NOTES\n\\&.5 is a \\fBhalf\\fR.\n.PP\nC:\\e is a path.\n"));
  EXPECT_THAT(page, HasSubstr(".SH SEE ALSO\n.BR other (1),\n.BR more (1)\n"));
  for (const Option& option : dotted.all()) EXPECT_THAT(page, HasSubstr("\\fB" + roff(option.name) + "\\fR"));
}

TEST(Options, CompletionOffersWordsAndFiles) {
  Table made = table();
  made.sections[1].options.push_back(Row::text<&Settings::name>("--from", "NAME|FILE", "From where. Or not."));
  made.sections[1].options.push_back(Row::text<&Settings::name>("--to", "OUT.plan", "Where 'to'."));
  made.sections[1].options.push_back(Row::text<&Settings::name>("--in", "DIR", "In [where]."));
  made.sections[1].options.push_back(Row::text<&Settings::labels>("--rows", "NAME=FILE", "Rows."));
  const std::string bash = bashCompletion("tool", {&made});
  EXPECT_THAT(bash, HasSubstr("' --color') words='red green' ;;\n"));
  EXPECT_THAT(bash, HasSubstr("' --count') ;;\n"));
  EXPECT_THAT(bash, HasSubstr("' --from') files='*' ;;\n"));
  EXPECT_THAT(bash, HasSubstr("' --to') files='*.plan' ;;\n"));
  EXPECT_THAT(bash, HasSubstr("' --in') folders=1 ;;\n"));
  EXPECT_THAT(bash, Not(HasSubstr("--loud')")));  // a flag takes nothing
  const std::string zsh = zshCompletion("tool", {&made});
  EXPECT_THAT(zsh, HasSubstr("'--color=[Which]:red|green:(red green)'"));
  EXPECT_THAT(zsh, HasSubstr("'*--label=[A label]:TEXT: '"));
  EXPECT_THAT(zsh, HasSubstr("'--from=[From where]:NAME|FILE:_files'"));
  EXPECT_THAT(zsh, HasSubstr("'--to=[Where '\\''to'\\'']:OUT.plan:_files -g \"*.plan(-.)\"'"));
  EXPECT_THAT(bash, HasSubstr("' --rows') files='*' ;;\n"));
  EXPECT_THAT(zsh, HasSubstr("'*--rows=[Rows]:NAME=FILE:_sheaf_named_file'"));
  EXPECT_THAT(zsh, HasSubstr("'--in=[In \\[where\\]]:DIR:_files -/'"));
}

}  // namespace
}  // namespace sheaf::options
