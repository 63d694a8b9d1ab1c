// Rows that come through a pipe: who gets which, and what is said of a pipe that carries something else or ends early.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "runtime/io/DataSource.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::npy;
using testing::TemporaryFolder;
using testing::writeFile;

// Inputs `x` f32 [2, 3] and `t` i64 [2] a rank; two ranks. Each is read once a step.
plan::Plan twoInputs() {
  plan::Plan plan;
  plan.set_ranks(2);
  plan.set_batch(4);
  uint32_t index = 0;
  for (auto [name, type] : {std::pair("x", plan::F32), std::pair("t", plan::I64)}) {
    plan::Input* input = plan.add_inputs();
    input->set_name(name);
    input->set_type(type);
    input->add_shape(2);
    if (type == plan::F32) input->add_shape(3);
    plan.add_body()->mutable_input()->set_input(index++);
  }
  return plan;
}

// Arrays of rows [first, first + rows): of x, whose element j of row i is 10 i + j, and of t, which is i.
std::string rowsOfX(int64_t first, int64_t rows) {
  std::vector<double> values;
  for (int64_t i = first; i < first + rows; ++i)
    for (int64_t j = 0; j < 3; ++j) values.push_back(static_cast<double>(10 * i + j));
  return npy<double>("<f8", {rows, 3}, values);
}
std::string rowsOfT(int64_t first, int64_t rows) {
  std::vector<int32_t> values;
  for (int64_t i = first; i < first + rows; ++i) values.push_back(static_cast<int32_t>(i));
  return npy<int32_t>("<i4", {rows}, values);
}

class Pipe : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(pipe(waiting_), 0); }
  void TearDown() override {
    if (writer_.joinable()) writer_.join();
    close(waiting_[0]);
    if (!closed_) close(waiting_[1]);
  }

  // In a thread, since a pipe holds 64 KiB; closes it at the end.
  void write(const std::string& bytes) {
    closed_ = true;
    writer_ = std::thread([this, bytes] {
      for (size_t at = 0; at < bytes.size();) {
        const ssize_t count = ::write(waiting_[1], bytes.data() + at, bytes.size() - at);
        if (count <= 0) break;
        at += static_cast<size_t>(count);
      }
      close(waiting_[1]);
    });
  }
  std::string path() const { return "/dev/fd/" + std::to_string(waiting_[0]); }

  Expected<io::DataSource> open(const std::string& names, const io::PipeOptions& options = {}) {
    return io::DataSource::open(plan_, {*io::parseDataArgument(names + "=" + path())}, std::nullopt,
                                io::DataReader::kTraining, options);
  }
  // What is said to reading both inputs' first batch of x and t.
  std::string complaint(const std::string& bytes) {
    write(bytes);
    auto data = open("x,t");
    EXPECT_TRUE(data.ok()) << data.status().message();
    std::vector<float> x(6);
    std::vector<int64_t> t(2);
    for (int64_t rank = 0; rank < 2; ++rank)
      for (auto status : {data->read(rank, 0, 0, std::as_writable_bytes(std::span(x))),
                          data->read(rank, 1, 0, std::as_writable_bytes(std::span(t)))})
        if (!status.ok()) {
          // What ends the pipe, all ranks hear.
          if (status.message().starts_with("--data: ")) {
            EXPECT_EQ(data->read(1, 0, 0, std::as_writable_bytes(std::span(x))).message(), status.message());
          }
          return status.message();
        }
    return "";
  }

  plan::Plan plan_ = twoInputs();
  int waiting_[2] = {-1, -1};
  std::thread writer_;
  bool closed_ = false;
};

TEST_F(Pipe, RanksTakeTheirRowsHoweverTheyAreCut) {
  // Batches of 4 rows, in arrays of 1, 6, 0 and 5.
  std::string bytes;
  int64_t first = 0;
  for (int64_t rows : {1, 6, 0, 5}) {
    bytes += rowsOfX(first, rows) + rowsOfT(first, rows);
    first += rows;
  }
  write(bytes);
  auto data = open("x,t", {.firstSample = 40});
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_TRUE(data->isPiped());
  EXPECT_EQ(data->rows(), 0u);
  for (uint64_t step = 0; step < 3; ++step)
    for (int64_t rank : {1, 0}) {
      std::vector<float> x(6);
      std::vector<int64_t> t(2);
      ASSERT_TRUE(data->read(rank, 0, 40 + 4 * step, std::as_writable_bytes(std::span(x))).ok());
      ASSERT_TRUE(data->read(rank, 1, 40 + 4 * step, std::as_writable_bytes(std::span(t))).ok());
      const int64_t row = static_cast<int64_t>(4 * step) + 2 * rank;
      EXPECT_THAT(t, ElementsAre(row, row + 1));
      const float a = static_cast<float>(10 * row);
      EXPECT_THAT(x, ElementsAre(a, a + 1, a + 2, a + 10, a + 11, a + 12));
    }
  std::vector<float> x(6);
  EXPECT_THAT(data->read(0, 0, 52, std::as_writable_bytes(std::span(x))).message(),
              AllOf(HasSubstr("ended after 12 rows"), HasSubstr("--steps")));
  // What all have read is gone.
  EXPECT_FALSE(data->read(0, 0, 40, std::as_writable_bytes(std::span(x))).ok());
}

TEST_F(Pipe, ThreadsMayReadTogether) {
  constexpr int64_t kSteps = 400;
  std::string bytes;
  for (int64_t first = 0; first < 4 * kSteps; first += 16) bytes += rowsOfX(first, 16) + rowsOfT(first, 16);
  write(bytes);
  auto data = open("x,t");
  std::vector<int64_t> wrong(2);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      for (int64_t step = 0; step < kSteps; ++step) {
        std::vector<float> x(6);
        std::vector<int64_t> t(2);
        const int64_t sample = 4 * step, row = sample + 2 * rank;
        const bool read =
            data->read(rank, 0, static_cast<uint64_t>(sample), std::as_writable_bytes(std::span(x))).ok() &&
            data->read(rank, 1, static_cast<uint64_t>(sample), std::as_writable_bytes(std::span(t))).ok();
        wrong[static_cast<size_t>(rank)] +=
            !read || t[0] != row || t[1] != row + 1 || x[5] != static_cast<float>(10 * row + 12);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0));
}

TEST_F(Pipe, WhatItCarriesIsChecked) {
  EXPECT_THAT(complaint(rowsOfX(0, 4) + npy<float>("<f4", {4}, {0, 1, 2, 3})),
              AllOf(HasSubstr("input 't'"), HasSubstr("f32, the plan expects i64")));
}
TEST_F(Pipe, OtherShapes) {
  EXPECT_THAT(complaint(rowsOfX(0, 4) + npy<int64_t>("<i8", {2, 2}, {0, 1, 2, 3})),
              AllOf(HasSubstr("input 't'"), HasSubstr("[2, 2], the plan expects [rows]")));
}
TEST_F(Pipe, FewerRowsOfOneInput) {
  EXPECT_THAT(complaint(rowsOfX(0, 4) + rowsOfT(0, 3)),
              AllOf(HasSubstr("3 rows, that of 'x' before it 4"), HasSubstr("take turns")));
}
TEST_F(Pipe, ShapesThatAreTooLarge) {
  const std::string large = "1000000000000";
  std::string header = rowsOfX(0, 4).substr(0, 128);
  header.replace(header.find("(4, 3"), 5, "(" + large + ", 3");
  header.erase(header.size() - large.size(), large.size() - 1);
  EXPECT_THAT(complaint(header), AllOf(HasSubstr("larger than 1.0 GiB"), HasSubstr("fewer rows at a time")));
}
TEST_F(Pipe, OtherBytes) {
  EXPECT_THAT(complaint("x,t\n1,2\n3,4\n5,6\n"), AllOf(HasSubstr("not a .npy file"), HasSubstr("row 0")));
}
TEST_F(Pipe, EndsWithinAnArray) {
  EXPECT_THAT(complaint(rowsOfX(0, 4).substr(0, 200)), HasSubstr("ended within an array of shape [4, 3]"));
}
TEST_F(Pipe, EndsWithinAHeader) {
  EXPECT_THAT(complaint(rowsOfX(0, 4).substr(0, 100)), HasSubstr("header is truncated"));
}
TEST_F(Pipe, EndsBetweenInputs) {
  EXPECT_THAT(complaint(rowsOfX(0, 4)), AllOf(HasSubstr("input 't'"), HasSubstr("ended before its array")));
}
TEST_F(Pipe, EndsAtOnce) {
  EXPECT_THAT(complaint(""), HasSubstr("ended after 0 rows"));
}

TEST_F(Pipe, ANumberThatDoesNotFitNamesItsRow) {
  plan_.mutable_inputs(1)->set_classes(3);
  EXPECT_THAT(complaint(rowsOfX(0, 4) + rowsOfT(0, 4)),
              AllOf(HasSubstr("input 't': row 3 of the pipe"), HasSubstr("label 3 is not in [0, 3)")));
}

TEST_F(Pipe, IsRefusedWhereRowsAreReadAgainOrInAnotherOrder) {
  const io::DataArgument pipe = *io::parseDataArgument("x,t=" + path());
  EXPECT_THAT(io::DataSource::open(plan_, {pipe}, 1).status().message(), HasSubstr("--shuffle"));
  EXPECT_THAT(
      io::DataSource::open(plan_, {*io::parseDataArgument("x=" + path()), *io::parseDataArgument("t=" + path())}, {})
          .status()
          .message(),
      HasSubstr("one pipe"));
  EXPECT_THAT(open("x").status().message(), HasSubstr("input 't' [2] has no data"));
  EXPECT_THAT(open("x,t,y").status().message(), HasSubstr("no input 'y'"));
  EXPECT_THAT(open("x,x").status().message(), HasSubstr("given twice"));
  TemporaryFolder folder;
  writeFile(folder / "t.npy", rowsOfT(0, 4));
  EXPECT_THAT(io::DataSource::open(
                  plan_, {*io::parseDataArgument("x=" + path()), *io::parseDataArgument("t=" + (folder / "t.npy"))}, {})
                  .status()
                  .message(),
              AllOf(HasSubstr("'t' has rows in a file"), HasSubstr("by one of them")));
  writeFile(folder / "y.npy", rowsOfX(0, 4));
  EXPECT_THAT(
      io::DataSource::open(plan_, {*io::parseDataArgument("x,t,z=" + (folder / "y.npy"))}, {}).status().message(),
      HasSubstr("through a pipe"));
  for (const plan::Input& input : plan_.inputs())
    plan_.add_evaluation()->mutable_input()->set_input(input.name() == "x" ? 0 : 1);
  EXPECT_THAT(io::DataSource::open(plan_, {pipe}, {}, io::DataReader::kEvaluation).status().message(),
              AllOf(HasSubstr("--eval-data"), HasSubstr("evaluation reads files")));
}

TEST_F(Pipe, AFailedRunEndsTheWait) {
  std::atomic<bool> failed = false;
  auto data = open("x,t", {.waiting = {.failed = &failed}});  // its writer says nothing
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    failed = true;
  });
  std::vector<float> x(6);
  EXPECT_THAT(data->read(0, 0, 0, std::as_writable_bytes(std::span(x))).message(), HasSubstr("the run failed"));
  other.join();
}

TEST_F(Pipe, RowsThatHaveComeAreReadWhileOthersAreAwaited) {
  std::atomic<bool> interrupted = false;
  auto data = open("x,t", {.waiting = {.interrupted = &interrupted}});
  const std::string bytes = rowsOfX(0, 4) + rowsOfT(0, 4);
  ASSERT_EQ(::write(waiting_[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  EXPECT_TRUE(data->await(4).ok());
  std::atomic<bool> over = false;
  std::thread other([&] {
    EXPECT_THAT(data->await(8).message(), HasSubstr("interrupted"));  // they do not come
    over = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::vector<float> x(6);
  for (int64_t rank : {0, 1}) EXPECT_TRUE(data->read(rank, 0, 0, std::as_writable_bytes(std::span(x))).ok());
  EXPECT_THAT(x, ElementsAre(20, 21, 22, 30, 31, 32));
  EXPECT_FALSE(over);
  interrupted = true;
  other.join();
}

TEST_F(Pipe, NamedOnesMayHaveNoWriterYet) {
  TemporaryFolder folder;
  const std::string name = folder / "rows";
  ASSERT_EQ(mkfifo(name.c_str(), 0600), 0);
  auto data = io::DataSource::open(plan_, {*io::parseDataArgument("x,t=" + name)}, {});
  ASSERT_TRUE(data.ok()) << data.status().message();
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    writeFile(name, rowsOfX(0, 4) + rowsOfT(0, 4));
  });
  std::vector<int64_t> t(2);
  Status status = data->read(1, 1, 0, std::as_writable_bytes(std::span(t)));
  other.join();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_THAT(t, ElementsAre(2, 3));
}

}  // namespace
}  // namespace sheaf
