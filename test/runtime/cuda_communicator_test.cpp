// nccl::Communicator: who is in NCCL when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "runtime/device/cuda/nccl/Communicator.h"

namespace sheaf::testing {
namespace {

using ::testing::HasSubstr;

std::atomic<int> polls;
std::atomic<ncclResult_t> state;

// Of a communicator of one rank that is ready at once, and in `state` from then on.
nccl::Api api() {
  nccl::Api api;
  api.commInitRankConfig = [](ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t*) {
    static char object;
    *comm = reinterpret_cast<ncclComm_t>(&object);
    return ncclSuccess;
  };
  api.commGetAsyncError = [](ncclComm_t, ncclResult_t* result) {
    ++polls;
    *result = state;
    return ncclSuccess;
  };
  api.commAbort = [](ncclComm_t) { return ncclSuccess; };
  api.getErrorString = [](ncclResult_t) { return "a system error"; };
  api.getLastError = [](ncclComm_t) { return "a cable is out"; };
  return api;
}

class CommunicatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    state = ncclSuccess;
    ASSERT_TRUE(communicator_.open(1, {}, 0, {}).ok());
  }
  void TearDown() override { communicator_.abort(); }

  const nccl::Api api_ = api();
  const comm::AbortSignal signal_;
  nccl::Communicator communicator_{api_, signal_, std::chrono::seconds(1)};
};

TEST_F(CommunicatorTest, AnErrorBetweenCallsIsReported) {
  EXPECT_TRUE(communicator_.error().ok());
  state = ncclSystemError;
  EXPECT_THAT(communicator_.error().message(), HasSubstr("NCCL failed: a system error (a cable is out)"));
  state = ncclInProgress;
  EXPECT_TRUE(communicator_.error().ok());
}

// A call may block, on a full queue of launches, say. Who asks for errors must neither wait for it, because the
// watchdog does nothing else meanwhile, nor be in NCCL at the same time.
TEST_F(CommunicatorTest, NobodyAsksForErrorsDuringACall) {
  std::promise<void> begun, end;
  std::thread calling([&] {
    Status status = communicator_.call("block", [&](ncclComm_t) {
      begun.set_value();
      end.get_future().wait();
      return ncclSuccess;
    });
    EXPECT_TRUE(status.ok()) << status.message();
  });
  begun.get_future().wait();
  const int before = polls;
  state = ncclSystemError;
  std::future<Status> asked = std::async(std::launch::async, [&] { return communicator_.error(); });
  const bool returned = asked.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
  EXPECT_TRUE(returned) << "it waits for the call";
  EXPECT_EQ(polls, before) << "NCCL is asked during the call";
  state = ncclSuccess;
  end.set_value();
  EXPECT_TRUE(asked.get().ok());
  calling.join();
}

TEST_F(CommunicatorTest, ACallIsDoneWhenTheCommunicatorIsReady) {
  state = ncclInProgress;
  std::thread ready([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    state = ncclSuccess;
  });
  EXPECT_TRUE(communicator_.call("return early", [](ncclComm_t) { return ncclSuccess; }).ok());
  EXPECT_EQ(state, ncclSuccess) << "the call was not waited for";
  ready.join();
  state = ncclInProgress;
  EXPECT_THAT(communicator_.call("end", [](ncclComm_t) { return ncclSuccess; }).message(),
              HasSubstr("NCCL could not end in time"));
}

}  // namespace
}  // namespace sheaf::testing
