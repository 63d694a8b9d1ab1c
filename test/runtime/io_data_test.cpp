// Which rows a rank reads at which step, from every kind of file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <set>

#include "runtime/base/Text.h"
#include "runtime/io/DataSource.h"
#include "runtime/io/Permutation.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::npy;
using testing::TemporaryFolder;
using testing::writeFile;

TEST(Permutation, IsOne) {
  for (uint64_t size : {1, 2, 3, 4, 5, 17, 64, 100, 1000, 4097}) {
    io::Permutation permutation(size, 42);
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < size; ++i) seen.insert(permutation(i));
    EXPECT_EQ(seen.size(), size);
    EXPECT_LT(*seen.rbegin(), size);
  }
}

TEST(Permutation, KeysDifferAndElementsMove) {
  io::Permutation a(1000, 1), b(1000, 2);
  int same = 0, fixed = 0, neighbours = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    same += a(i) == b(i);
    fixed += a(i) == i;
    neighbours += i > 0 && a(i) == a(i - 1) + 1;
  }
  EXPECT_LT(same, 10);
  EXPECT_LT(fixed, 10);
  EXPECT_LT(neighbours, 10);
}

// Inputs `x` f32 [2, 3] and `t` i64 [2, 3] a rank; two ranks.
plan::Plan twoInputs() {
  plan::Plan plan;
  plan.set_ranks(2);
  plan.set_batch(4);
  for (auto [name, type] : {std::pair("x", plan::F32), std::pair("t", plan::I64)}) {
    plan::Input* input = plan.add_inputs();
    input->set_name(name);
    input->set_type(type);
    input->add_shape(2);
    input->add_shape(3);
  }
  return plan;
}

template <typename T>
std::vector<T> rowsOf(const io::DataSource& data, int64_t rank, uint32_t input, uint64_t sample) {
  std::vector<T> values(6);
  Status status = data.read(rank, input, sample, std::as_writable_bytes(std::span(values)));
  EXPECT_TRUE(status.ok()) << status.message();
  return values;
}

class Data : public ::testing::Test {
 protected:
  // Five rows; element j of row i is 10 i + j.
  void SetUp() override {
    std::vector<double> x;
    std::vector<int32_t> t;
    for (int i = 0; i < 15; ++i) {
      x.push_back(i / 3 * 10 + i % 3);
      t.push_back(i / 3 * 10 + i % 3);
    }
    writeFile(folder_ / "x.npy", npy<double>("<f8", {5, 3}, x));
    writeFile(folder_ / "t.npy", npy<int32_t>("<i4", {5, 3}, t));
  }

  Expected<io::DataSource> open(const std::vector<std::string>& arguments, std::optional<int64_t> seed = {}) {
    std::vector<io::DataArgument> parsed;
    for (const std::string& argument : arguments) {
      auto one = io::parseDataArgument(argument);
      if (!one.ok()) return one.status();
      parsed.push_back(*one);
    }
    return io::DataSource::open(plan_, parsed, seed);
  }
  std::string refused(const std::vector<std::string>& arguments) { return open(arguments).status().message(); }

  TemporaryFolder folder_;
  plan::Plan plan_ = twoInputs();
};

TEST_F(Data, RanksTakeContiguousSlicesAndWrap) {
  auto data = open({"x=" + (folder_ / "x.npy"), "t=" + (folder_ / "t.npy")});
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_EQ(data->rows(), 5u);
  EXPECT_THAT(rowsOf<float>(*data, 0, 0, 0), ElementsAre(0, 1, 2, 10, 11, 12));
  EXPECT_THAT(rowsOf<int64_t>(*data, 1, 1, 0), ElementsAre(20, 21, 22, 30, 31, 32));
  EXPECT_THAT(rowsOf<int64_t>(*data, 0, 1, 4), ElementsAre(40, 41, 42, 0, 1, 2));
  EXPECT_THAT(rowsOf<float>(*data, 1, 0, 4), ElementsAre(10, 11, 12, 20, 21, 22));
}

TEST_F(Data, ShuffledEpochsAreDifferentPermutationsAndInputsAgree) {
  auto data = open({"x=" + (folder_ / "x.npy"), "t=" + (folder_ / "t.npy")}, 3);
  ASSERT_TRUE(data.ok());
  std::vector<std::vector<int>> epochs(40);
  for (uint64_t sample = 0; sample < 200; sample += 2) {
    auto t = rowsOf<int64_t>(*data, 0, 1, sample);
    auto x = rowsOf<float>(*data, 0, 0, sample);
    for (size_t i = 0; i < 6; ++i) EXPECT_EQ(static_cast<float>(t[i]), x[i]);
    epochs[sample / 5].push_back(static_cast<int>(t[0] / 10));
    epochs[(sample + 1) / 5].push_back(static_cast<int>(t[3] / 10));
  }
  for (std::vector<int>& epoch : epochs) EXPECT_THAT(epoch, ::testing::UnorderedElementsAre(0, 1, 2, 3, 4));
  EXPECT_GT(std::set(epochs.begin(), epochs.end()).size(), 20u);
}

// A file whose rows can no longer be read while a run goes on: of every type, held in memory and not.
TEST_F(Data, FilesThatBecomeShorterAreErrorsThatNameTheRow) {
  struct Way {
    const char* file;
    std::string head;  // bytes before the rows
    uint64_t rowBytes;
    const char* argument;
  };
  const std::string header = *io::npyHeader(io::DataType::F32, std::vector<int64_t>{2'000'000, 3}),
                    converted = *io::npyHeader(io::DataType::F64, std::vector<int64_t>{1'000'000, 3});
  const Way ways[] = {
      {"large.npy", header, 12, "x="}, {"converted.npy", converted, 24, "x="}, {"large.u32", "", 12, "t="}};
  for (const Way& way : ways) {
    SCOPED_TRACE(way.file);
    const std::string path = folder_ / way.file;
    writeFile(path, way.head);
    const uint64_t rows = 24'000'000 / way.rowBytes;
    ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(way.head.size() + rows * way.rowBytes)), 0);
    plan_ = twoInputs();
    plan_.mutable_inputs()->DeleteSubrange(way.argument[0] == 'x' ? 1 : 0, 1);
    auto data = open({way.argument + path});
    ASSERT_TRUE(data.ok()) << data.status().message();
    std::vector<std::byte> bytes(2 * 3 * (way.argument[0] == 'x' ? 4 : 8));
    EXPECT_TRUE(data->read(0, 0, rows - 2, bytes).ok());
    ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(way.head.size() + 1001 * way.rowBytes - 1)), 0);
    EXPECT_TRUE(data->read(0, 0, 998, bytes).ok());
    EXPECT_THAT(data->read(0, 0, 999, bytes).message(),
                AllOf(HasSubstr(path + ", row 1000: the file has "), HasSubstr("it has become shorter")));
    EXPECT_THAT(data->read(0, 0, rows - 2, bytes).message(),
                HasSubstr(cat(path, ", row ", rows - 2, ": the file has ")));
    std::filesystem::remove(path);
  }
  plan_ = twoInputs();
  auto held = open({"x=" + (folder_ / "x.npy"), "t=" + (folder_ / "t.npy")});
  ASSERT_TRUE(held.ok());
  std::filesystem::resize_file(folder_ / "x.npy", std::filesystem::file_size(folder_ / "x.npy") - 8 * 3 - 1);
  std::vector<float> values(6);
  EXPECT_TRUE(held->read(0, 0, 0, std::as_writable_bytes(std::span(values))).ok());
  EXPECT_THAT(held->read(0, 0, 2, std::as_writable_bytes(std::span(values))).message(),
              HasSubstr("x.npy, row 3: the file has "));
}

// Rows of 5 files that follow each other, or not, in one batch.
TEST_F(Data, RunsOfRowsEndWithTheirFile) {
  plan_.mutable_inputs(0)->set_shape(0, 16);
  plan_.mutable_inputs(1)->set_shape(0, 16);
  plan_.set_batch(32);
  for (const char* type : {"<f4", "<f8"}) {
    for (int file = 0; file < 5; ++file) {
      std::vector<double> wide;
      std::vector<float> narrow;
      std::vector<int64_t> t;
      for (int i = 0; i < 3 * (file + 1); ++i)
        wide.push_back(file * 100 + i), narrow.push_back(static_cast<float>(file * 100 + i)),
            t.push_back(file * 100 + i);
      const std::vector<int64_t> shape{file + 1, 3};
      writeFile(folder_ / cat("p", file, ".npy"),
                type[2] == '4' ? npy<float>(type, shape, narrow) : npy<double>(type, shape, wide));
      writeFile(folder_ / cat("q", file, ".npy"), npy<int64_t>("<i8", shape, t));
    }
    for (std::optional<int64_t> seed : {std::optional<int64_t>(), std::optional<int64_t>(4)}) {
      auto data = open({"x=" + (folder_ / "p*.npy"), "t=" + (folder_ / "q*.npy")}, seed);
      ASSERT_TRUE(data.ok()) << data.status().message();
      ASSERT_EQ(data->rows(), 15u);
      std::vector<float> x(48);
      std::vector<int64_t> t(48);
      ASSERT_TRUE(data->read(1, 0, 7, std::as_writable_bytes(std::span(x))).ok());
      ASSERT_TRUE(data->read(1, 1, 7, std::as_writable_bytes(std::span(t))).ok());
      for (size_t i = 0; i < 48; ++i) {
        EXPECT_EQ(x[i], static_cast<float>(t[i]));
        EXPECT_EQ(t[i], t[i - i % 3] + static_cast<int64_t>(i % 3));
      }
      EXPECT_TRUE(seed || t[0] == 300 + 3 * ((7 + 16) % 15 - 6)) << t[0];
    }
  }
}

TEST_F(Data, LabelsOutOfRangeAreErrorsThatNameTheRow) {
  plan_.mutable_inputs(1)->set_classes(42);
  std::vector<int64_t> labels(15);
  auto readAll = [&](int64_t changed) {
    labels[13] = changed;
    writeFile(folder_ / "labels.npy", npy<int64_t>("<i8", {5, 3}, labels));
    auto data = open({"x=" + (folder_ / "x.npy"), "t=" + (folder_ / "labels.npy")});
    std::vector<int64_t> values(6);
    EXPECT_TRUE(data->read(0, 1, 2, std::as_writable_bytes(std::span(values))).ok());
    return data->read(0, 1, 4, std::as_writable_bytes(std::span(values))).message();
  };
  EXPECT_EQ(readAll(41), "");
  EXPECT_THAT(readAll(42), AllOf(HasSubstr("input 't': "), HasSubstr("labels.npy, row 4: label 42 is not in [0, 42)")));
  EXPECT_THAT(readAll(-1), HasSubstr("label -1 is not in [0, 42)"));
  plan_.mutable_inputs(1)->set_ignored_label(-100);
  EXPECT_EQ(readAll(-100), "");
  EXPECT_THAT(readAll(-1), HasSubstr("label -1 is not in [0, 42) and is not ignore_index (-100)"));
  plan_.mutable_inputs(1)->clear_classes();
  EXPECT_EQ(readAll(-1), "");
}

// checkClasses() reads labels without a training, until its caller wants no more.
TEST_F(Data, LabelsOutOfRangeAreFoundWithoutReadingThePieces) {
  auto checked = [&](size_t changed, bool stops = false) {
    std::vector<int64_t> labels(15);
    if (changed < labels.size()) labels[changed] = 42;
    writeFile(folder_ / "labels.npy", npy<int64_t>("<i8", {5, 3}, labels));
    auto data = open({"x=" + (folder_ / "x.npy"), "t=" + (folder_ / "labels.npy")});
    return data->checkClasses([&] { return stops; }).message();
  };
  plan_.mutable_inputs(1)->set_classes(42);
  EXPECT_EQ(checked(15), "");
  for (size_t changed : {0, 7, 14})
    EXPECT_THAT(checked(changed), HasSubstr("row " + std::to_string(changed / 3) + ": label 42 is not in [0, 42)"));
  EXPECT_EQ(checked(7, true), "");
  plan_.mutable_inputs(1)->clear_classes();
  EXPECT_EQ(checked(7), "");
}

// Labels that are not the tokens which follow would train without an error, and to no purpose.
TEST_F(Data, LabelsOfTokensAreTheTokensThatFollow) {
  plan_.mutable_inputs(0)->set_type(plan::I64);
  for (int i : {0, 1}) plan_.mutable_inputs(i)->set_classes(42);
  plan_.mutable_inputs(0)->set_ids(true);
  const std::string tokens = folder_ / "tokens.u8", array = folder_ / "t.npy";
  writeFile(tokens, std::string(14, '\1'));
  EXPECT_TRUE(open({"x,t=" + tokens}).ok());
  EXPECT_THAT(refused({"t,x=" + tokens}), HasSubstr("'t' has the labels; write --data x,t=" + tokens));
  EXPECT_THAT(refused({"t=" + tokens, "x=" + tokens}), HasSubstr("write --data x,t=" + tokens));
  EXPECT_THAT(refused({"x=" + tokens, "t=" + tokens}), HasSubstr("write --data x,t=" + tokens));
  EXPECT_THAT(refused({"x,x=" + tokens}), HasSubstr("names 'x' twice"));
  EXPECT_THAT(refused({"x,t=" + tokens, "x,t=" + tokens}), HasSubstr("input 'x' is given twice"));
  // An array may be the input and the target of a model that copies; labels of tokens get a note.
  EXPECT_THAT(open({"x=" + array, "t=" + array})->notes(), ::testing::IsEmpty());
  plan_.mutable_inputs(1)->set_tokens(true);
  for (auto [a, b] : {std::pair("x=", "t="), std::pair("t=", "x=")})
    EXPECT_THAT(open({a + array, b + array})->notes(), ElementsAre(HasSubstr("number i is token i + 1")));
  // The graph takes the label of a token from the next one.
  plan_.mutable_inputs(1)->set_shifted(true);
  EXPECT_TRUE(open({"x=" + tokens, "t=" + tokens}).ok());
  EXPECT_TRUE(open({"x=" + array, "t=" + array}).ok());
  EXPECT_THAT(refused({"x,t=" + tokens}), HasSubstr("would shift them once more"));
}

TEST_F(Data, TokensAndShiftedLabels) {
  plan_.mutable_inputs(0)->set_type(plan::I64);
  std::string tokens;
  for (char i = 0; i < 14; ++i) tokens += i;
  writeFile(folder_ / "text.txt", tokens);
  auto data = open({"x,t=" + (folder_ / "text.txt") + ":u8"});
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_EQ(data->rows(), 4u);
  EXPECT_THAT(rowsOf<int64_t>(*data, 1, 0, 0), ElementsAre(6, 7, 8, 9, 10, 11));
  EXPECT_THAT(rowsOf<int64_t>(*data, 1, 1, 0), ElementsAre(7, 8, 9, 10, 11, 12));
  writeFile(folder_ / "short.u8", "abc");
  EXPECT_THAT(refused({"x,t=" + (folder_ / "short.u8")}), HasSubstr("fewer than one row"));
  EXPECT_THAT(refused({"x=" + (folder_ / "text.txt") + ":u8", "t=" + (folder_ / "text.txt") + ":u8"}),
              HasSubstr("write --data x,t="));
}

TEST_F(Data, ErrorsNameInputFileAndShapes) {
  std::string x = folder_ / "x.npy", t = "t=" + (folder_ / "t.npy");
  EXPECT_THAT(refused({t}), AllOf(HasSubstr("input 'x' [2, 3] has no data"), HasSubstr("--data x=")));
  EXPECT_THAT(refused({"y=" + x, t}), AllOf(HasSubstr("no input 'y'"), HasSubstr("x, t")));
  EXPECT_THAT(refused({"x=" + x, "x=" + x, t}), HasSubstr("twice"));
  EXPECT_THAT(refused({"x=" + (folder_ / "none.npy"), t}), HasSubstr("none.npy"));
  EXPECT_THAT(refused({"t=" + x, "x=" + x}), AllOf(HasSubstr("f64"), HasSubstr("i64")));
  EXPECT_THAT(refused({"x"}), HasSubstr("NAME=FILE"));
  EXPECT_THAT(refused({"=a"}), HasSubstr("NAME=FILE"));
  writeFile(folder_ / "y.npy", npy<float>("<f4", {5, 4}, std::vector<float>(20)));
  EXPECT_THAT(refused({"x=" + (folder_ / "y.npy"), t}),
              AllOf(HasSubstr("[5, 4]"), HasSubstr("[rows, 3]"), HasSubstr("y.npy")));
  writeFile(folder_ / "z.npy", npy<float>("<f4", {4, 3}, std::vector<float>(12)));
  EXPECT_THAT(refused({"x=" + (folder_ / "z.npy"), t}), HasSubstr("5 rows, other inputs have 4"));
  EXPECT_THAT(refused({"x,t=" + x}), HasSubstr("raw tokens"));
  EXPECT_THAT(refused({"x=" + folder_.path(), t}), HasSubstr("not a regular file"));
}

// Seven rows in three files; what is beyond whole rows of a file, the labels' last token with it, is not read.
TEST_F(Data, FilesOfAPatternAreReadAsOne) {
  plan_.mutable_inputs(0)->set_type(plan::I64);
  auto tokens = [](char first, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += static_cast<char>(first + i);
    return text;
  };
  writeFile(folder_ / "train-2.u8", tokens(50, 11));  // 3 rows from 50 on
  writeFile(folder_ / "train-10.u8", tokens(0, 9));   // 2 rows from 0 on: by name it is the first
  writeFile(folder_ / "train-3.u8", tokens(80, 7));   // 2 rows from 80 on
  writeFile(folder_ / "test-1.u8", tokens(100, 30));
  auto data = open({"x,t=" + (folder_ / "train-*.u8")});
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_EQ(data->rows(), 7u);
  const int firsts[] = {0, 3, 50, 53, 56, 80, 83};
  for (uint64_t row = 0; row < 14; ++row) {
    const int64_t a = firsts[row % 7], b = firsts[(row + 1) % 7];
    EXPECT_THAT(rowsOf<int64_t>(*data, 0, 0, row), ElementsAre(a, a + 1, a + 2, b, b + 1, b + 2));
    EXPECT_THAT(rowsOf<int64_t>(*data, 0, 1, row), ElementsAre(a + 1, a + 2, a + 3, b + 1, b + 2, b + 3));
  }
  // Shuffled, the permutation is over all files.
  auto shuffled = open({"x,t=" + (folder_ / "train-*.u8")}, 1);
  std::multiset<int64_t> seen;
  for (uint64_t sample = 0; sample < 14; sample += 2) {
    auto rows = rowsOf<int64_t>(*shuffled, 0, 0, sample);
    seen.insert({rows[0], rows[3]});
  }
  EXPECT_THAT(seen, ::testing::UnorderedElementsAre(0, 0, 3, 3, 50, 50, 53, 53, 56, 56, 80, 80, 83, 83));
  // Processes that read other files differ in what they state, also where only the division into files differs.
  const std::vector<std::string> facts = *data->describe();
  EXPECT_THAT(facts[0], HasSubstr("7 rows of u8 in 3 files of 27 bytes"));
  writeFile(folder_ / "train-3.u8", tokens(81, 7));
  EXPECT_NE(*open({"x,t=" + (folder_ / "train-*.u8")})->describe(), facts);
}

TEST_F(Data, PatternsOfArrays) {
  writeFile(folder_ / "x-a.npy", npy<double>("<f8", {2, 3}, {0, 1, 2, 10, 11, 12}));
  writeFile(folder_ / "x-b.npy", npy<double>("<f8", {3, 3}, {20, 21, 22, 30, 31, 32, 40, 41, 42}));
  const std::string t = "t=" + (folder_ / "t.npy"), x = "x=" + (folder_ / "x-?.npy");
  auto data = open({x, t});
  ASSERT_TRUE(data.ok()) << data.status().message();
  for (uint64_t row = 0; row < 5; ++row) {
    const std::vector<int64_t> numbers = rowsOf<int64_t>(*data, 0, 1, row);
    EXPECT_EQ(rowsOf<float>(*data, 0, 0, row), std::vector<float>(numbers.begin(), numbers.end()));
  }
  EXPECT_THAT(refused({"x=" + (folder_ / "none-*.npy"), t}),
              AllOf(HasSubstr("no file matches"), HasSubstr("none-*.npy")));
  // A mismatch names the file.
  writeFile(folder_ / "x-c.npy", npy<float>("<f4", {1, 3}, {1, 2, 3}));
  EXPECT_THAT(refused({x, t}),
              AllOf(HasSubstr("x-c.npy: its elements are f32, those of "), HasSubstr("x-a.npy are f64")));
  writeFile(folder_ / "x-c.npy", npy<double>("<f8", {1, 2}, {1, 2}));
  EXPECT_THAT(refused({x, t}), AllOf(HasSubstr("x-c.npy: its shape is [1, 2]")));
  writeFile(folder_ / "x-c.npy", npy<double>("<f8", {1, 3}, {1, 2, 3}));
  EXPECT_THAT(refused({t, x}), AllOf(HasSubstr("x-?.npy"), HasSubstr("6 rows, other inputs have 5")));
  // A file that is called like a pattern is meant itself.
  writeFile(folder_ / "x-?.npy", npy<double>("<f8", {5, 3}, std::vector<double>(15)));
  EXPECT_TRUE(open({x, t}).ok());
}

TEST_F(Data, ATokenThatDoesNotFitIsNamed) {
  plan_.mutable_inputs(1)->set_type(plan::I8);
  writeFile(folder_ / "t.npy", npy<int32_t>("<i4", {5, 3}, std::vector<int32_t>(15, 1000)));
  auto data = open({"x=" + (folder_ / "x.npy"), "t=" + (folder_ / "t.npy")});
  ASSERT_TRUE(data.ok());
  std::vector<int8_t> values(6);
  EXPECT_THAT(data->read(1, 1, 0, std::as_writable_bytes(std::span(values))).message(),
              AllOf(HasSubstr("input 't'"), HasSubstr("row 2"), HasSubstr("1000")));
}

}  // namespace
}  // namespace sheaf
