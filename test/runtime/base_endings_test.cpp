// Threads and memory that the system refuses, files that become shorter, a process that is stopped: each is a message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>

#include "runtime/base/CrashHandlers.h"
#include "runtime/base/MappedFile.h"
#include "runtime/base/ResourceErrors.h"
#include "runtime/base/SuspendDetector.h"
#include "runtime/base/Threads.h"

namespace sheaf {
namespace {

using ::testing::HasSubstr;

TEST(WorkerThreads, EveryThreadWorksInEveryRound) {
  Expected<std::unique_ptr<WorkerThreads>> team = WorkerThreads::create("a test", 5);
  ASSERT_TRUE(team.ok()) << team.status().message();
  std::vector<int> calls(5);
  for (int round = 0; round < 200; ++round) (*team)->runAll([&](size_t i) { ++calls[i]; });
  EXPECT_EQ(calls, std::vector<int>(5, 200));
}

TEST(WorkerThreads, AllWorkAtOnce) {
  Expected<std::unique_ptr<WorkerThreads>> team = WorkerThreads::create("a test", 4);
  ASSERT_TRUE(team.ok());
  std::atomic<int> arrived = 0;
  (*team)->start([&](size_t) {
    ++arrived;
    while (arrived < 5) std::this_thread::yield();
  });
  ++arrived;  // this thread is not one of them
  (*team)->wait();
  EXPECT_EQ(arrived, 5);
}

TEST(WorkerThreads, ItsEndWaitsForTheWork) {
  std::atomic<int> done = 0;
  {
    Expected<std::unique_ptr<WorkerThreads>> team = WorkerThreads::create("a test", 3);
    ASSERT_TRUE(team.ok());
    (*team)->start([&](size_t) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ++done;
    });
  }
  EXPECT_EQ(done, 3);
}

TEST(Threads, AShareOfTheWorkIsDoneByFewerWhereThereAreNoMore) {
  std::atomic<int> next = 0, calls = 0;
  runOnThreads(4, [&] {
    ++calls;
    while (next < 100) ++next;
  });
  EXPECT_GE(next, 100);
  EXPECT_GE(calls, 1);
  EXPECT_LE(calls, 4);
}

// Sanitizers take address space of their own for a thread, and do not bear that there is none.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// In a process whose address space has no room for a thread's stack.
[[noreturn]] void endWithoutThreads() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t most = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + (1 << 20);
  const rlimit space{most, most};
  setrlimit(RLIMIT_AS, &space);
  // The stacks of earlier threads are used again. What fails here must not wait for these threads.
  auto& before = *new std::vector<Thread>;
  Expected<Thread> one = Thread::start("a test", [] { pause(); });
  for (; one.ok(); one = Thread::start("a test", [] { pause(); })) before.push_back(std::move(*one));
  const Expected<std::unique_ptr<WorkerThreads>> many = WorkerThreads::create("a team", 3);
  int calls = 0;
  runOnThreads(3, [&] { ++calls; });
  exitWithError((one.status().message() + " | " + many.status().message() + " | " + std::to_string(calls)).c_str());
}

TEST(Threads, OneThatIsRefusedIsAnError) {
  EXPECT_EXIT(endWithoutThreads(), ::testing::ExitedWithCode(1),
              "cannot start a thread for a test: Resource temporarily unavailable; allow .*`ulimit -v` is .* [|] "
              "cannot start a thread for a team: .* [|] 1");
}
#endif

TEST(ResourceErrors, ExceptionsBecomeErrors) {
  EXPECT_TRUE(catchOutOfMemory("nothing", [] { return Status(); }).ok());
  EXPECT_EQ(catchOutOfMemory("nothing", [] { return Status::error("why"); }).message(), "why");
  EXPECT_THAT(catchOutOfMemory("the staging", []() -> Status { throw std::bad_alloc(); }).message(),
              HasSubstr("out of memory for the staging; "));
  EXPECT_THAT(outOfThreads("a stream", EAGAIN).message(),
              AllOf(HasSubstr("cannot start a thread for a stream: Resource temporarily unavailable; allow "),
                    HasSubstr("pids.max")));
}

[[noreturn]] void endWithBothErrors() {
  const rlimit space{uint64_t{1} << 46, uint64_t{1} << 46}, threads{4321, 4321};
  setrlimit(RLIMIT_AS, &space);
  setrlimit(RLIMIT_NPROC, &threads);
  exitWithError((outOfMemory("x").message() + outOfThreads("y", EAGAIN).message()).c_str());
}

TEST(ResourceErrors, LimitsOfTheProcessAreNamed) {
  EXPECT_EXIT(endWithBothErrors(), ::testing::ExitedWithCode(1),
              "raise `ulimit -v` .now 64.0 TiB.cannot start a thread for y.*`ulimit -u` is 4321.*`ulimit -v`");
}

TEST(ResourceErrors, AddressSpaceIsCheckedInAdvance) {
  EXPECT_TRUE(checkAddressSpace("libraries", 1 << 20).ok());
  EXPECT_THAT(checkAddressSpace("libraries", uint64_t{1} << 62).message(),
              HasSubstr("out of memory for 4096 PiB of libraries; "));
}

char* volatile taken;  // so that no memory is left out

struct Ending {
  const char* name;
  void (*end)();
  const char* says;
};

class Endings : public ::testing::TestWithParam<Ending> {};

TEST_P(Endings, AreOneError) {
  auto end = []() noexcept {
    installCrashHandlers("program");
    GetParam().end();
    _exit(3);
  };
  EXPECT_EXIT(end(), ::testing::ExitedWithCode(1), GetParam().says);
}

const Ending kEndings[] = {
    {"NoMemory", [] { throw std::bad_alloc(); }, "program: error: out of memory; "},
    {"NoMemoryInAThread", [] { std::thread([] { throw std::bad_alloc(); }).join(); },
     "program: error: out of memory; "},
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose own operator new ends the program
    {"TooMuchIsAskedFor",
     [] {
       // Not caught, though it could be: between here and there may be libraries that expect no exceptions.
       try {
         const volatile size_t bytes = size_t{1} << 62;
         taken = new char[bytes];
       } catch (const std::bad_alloc&) {
       }
     },
     "program: error: out of memory; "},
    {"TooMuchIsAskedForWhereThatIsExpected",
     [] {
       const volatile size_t bytes = size_t{1} << 62;
       exitWithError(catchOutOfMemory("a test",
                                      [&] {
                                        taken = new char[bytes];
                                        return Status();
                                      })
                         .message()
                         .c_str());
     },
     "program: error: out of memory for a test; "},
#endif
    {"AnyException", [] { throw std::runtime_error("what it says"); }, "program: error: internal error: what it says"},
    {"NoException", [] { std::terminate(); }, "program: error: internal error"},
    {"MappedFilesThatBecomeShorter",
     [] {
       const std::string path = ::testing::TempDir() + "sheaf-mapped-" + std::to_string(getpid());
       std::ofstream(path) << std::string(100'000, 'x');
       Expected<MappedFile> file = MappedFile::open(path);
       if (!file.ok() || truncate(path.c_str(), 10) != 0) return;
       unlink(path.c_str());
       const volatile std::byte byte = file->bytes()[50'000];
       (void)byte;
     },
     "program: error: .*sheaf-mapped-[0-9]+ was truncated while in use"},
};

INSTANTIATE_TEST_SUITE_P(Table, Endings, ::testing::ValuesIn(kEndings),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(MappedFiles, TheTableKnowsWhatIsMapped) {
  const std::string path = ::testing::TempDir() + "sheaf-table-" + std::to_string(getpid());
  std::ofstream(path) << std::string(10'000, 'x');
  Expected<MappedFile> first = MappedFile::open(path), second = MappedFile::open(path);
  ASSERT_TRUE(first.ok() && second.ok());
  const std::byte* const begin = first->bytes().data();
  EXPECT_STREQ(mappedFileAt(begin), path.c_str());
  EXPECT_STREQ(mappedFileAt(begin + 9'999), path.c_str());
  EXPECT_STREQ(mappedFileAt(second->bytes().data()), path.c_str());
  EXPECT_EQ(mappedFileAt(nullptr), nullptr);
  MappedFile moved = std::move(*first);
  EXPECT_STREQ(mappedFileAt(begin), path.c_str());
  moved = MappedFile();
  first = Status::error("closed");
  EXPECT_EQ(mappedFileAt(begin), nullptr);
  EXPECT_STREQ(mappedFileAt(second->bytes().data()), path.c_str());
  unlink(path.c_str());
}

TEST(SuspendDetector, SuspensionsAreSeenByTheThreadWithTheHeartbeatsAndByOthers) {
  using std::chrono::milliseconds;
  const milliseconds limit(2200);
  SuspendDetector::heartbeat(limit);
  SuspendDetector::heartbeat(limit);
  EXPECT_EQ(SuspendDetector::lastSuspension().count(), 0);
  std::this_thread::sleep_for(milliseconds(1150));
  EXPECT_GE(SuspendDetector::lastSuspension().count(), 1150);  // no heartbeat yet
  SuspendDetector::heartbeat(limit);
  EXPECT_GE(SuspendDetector::lastSuspension().count(), 1150);
  SuspendDetector::end();
  EXPECT_GE(SuspendDetector::lastSuspension().count(), 1150);
}

}  // namespace
}  // namespace sheaf
