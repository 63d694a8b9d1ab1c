// MPI between the processes of a job: what libsheaf_mpi_openmpi.so and libsheaf_mpi_mpich.so offer. The processes must
// have been started by the mpirun of that MPI, in the order of the job.
#include <algorithm>
#include <memory>
#include <vector>

#include "runtime/base/Text.h"
#include "runtime/base/Threads.h"
#include "runtime/comm/mpi/MpiChannel.h"
#include "runtime/comm/mpi/MpiEngine.h"
#include "runtime/comm/transport/Transport.h"

namespace sheaf::comm {
namespace {

constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 30;  // counts are ints
constexpr std::chrono::milliseconds kLook(50);
// So long calls of MPI may take once the job has failed, and MPI_Finalize once it has succeeded.
constexpr std::chrono::milliseconds kFailedEnd(500), kEnd(30000);

class MpiTransport : public Transport {
 public:
  static Expected<std::unique_ptr<Transport>> connect(ProcessGroup& group, const TransportOptions& options,
                                                      const AbortSignal& abort) {
    // MPI_Init waits for all processes. One that has failed before does not come.
    SHEAF_RETURN_IF_ERROR(group.barrier("the start of MPI"));
    std::unique_ptr<MpiTransport> transport(new MpiTransport(group, options));
    Expected<Thread> thread =
        Thread::start("MPI", [engine = transport->engine_, channels = transport->channels_] { engine->serve(); });
    if (!thread.ok()) return thread.status();
    transport->thread_ = std::move(*thread);
    transport->started_ = true;
    for (const auto deadline = Clock::now() + group.limit(); !transport->engine_->waitForStart(kLook);) {
      if (!abort.raised() && Clock::now() < deadline) continue;
      const Status why =
          abort.raised() ? abort.status()
                         : Status::error(cat("MPI has not started within ",
                                             secondsText(double(group.limit().count()) / 1000), " (SHEAF_TIMEOUT)"));
      transport->why_ = why.message();
      return why;
    }
    if (Status status = transport->engine_->startStatus(); !status.ok())
      return Status::error(cat("--transport mpi: ", status.message()));
    return std::unique_ptr<Transport>(std::move(transport));
  }

  ~MpiTransport() override {
    if (!started_) return;
    const bool orderly = group_.left();
    engine_->finish(orderly);
    if (engine_->waitForEnd(orderly ? kEnd : kFailedEnd)) {
      thread_.join();
      return;
    }
    // The thread is in a call of MPI that does not return. It keeps what it uses.
    thread_.detach();
    if (abandon_) abandon_(why_.empty() ? "a call of MPI does not return" : why_);
  }

  Channel& channel(int64_t communicator, int64_t rail) override {
    return *(*channels_)[static_cast<size_t>(communicator * rails_ + rail)];
  }

  void abort() override {
    // MPI is left alone from now on: some libraries end the process when they find that another one is gone.
    engine_->finish(false);
    for (const auto& channel : *channels_) channel->abort();
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Channels = std::vector<std::unique_ptr<MpiChannel>>;

  MpiTransport(ProcessGroup& group, const TransportOptions& options)
      : group_(group),
        rails_(options.rails),
        abandon_(options.abandon),
        traffic_(options.traffic ? options.traffic : std::make_shared<Traffic>()),
        rate_(options.sendRate > 0 ? std::make_unique<SendRate>(options.sendRate) : nullptr),
        channels_(std::make_shared<Channels>()) {
    traffic_->open(options.communicators, group.size());
    MpiEngine::Place place;
    place.mine = static_cast<size_t>(group.rank());
    place.lastTag = static_cast<int>(options.communicators * options.rails - 1);
    for (int64_t process = 0; process < group.size(); ++process) {
      place.ranks.push_back(static_cast<int>(group.inJob(process)));
      place.names.push_back(group.describe(process));
    }
    engine_ = std::make_shared<MpiEngine>(std::move(place));
    auto submit = [engine = engine_.get()](std::vector<MpiChannel::Message>& messages) { engine->submit(messages); };
    for (int tag = 0; tag < options.communicators * options.rails; ++tag)
      channels_->push_back(std::make_unique<MpiChannel>(group.size(), tag,
                                                        std::clamp<uint64_t>(options.messageBytes, 1, kMaxMessageBytes),
                                                        submit, *traffic_, tag / options.rails, rate_.get()));
  }

  ProcessGroup& group_;
  const int64_t rails_;
  const std::function<void(const std::string&)> abandon_;
  const std::shared_ptr<Traffic> traffic_;
  const std::unique_ptr<SendRate> rate_;  // null without a limit
  const std::shared_ptr<Channels> channels_;
  std::shared_ptr<MpiEngine> engine_;
  bool started_ = false;
  Thread thread_;
  std::string why_;  // it could not be connected
};

}  // namespace
}  // namespace sheaf::comm

// Of the type sheaf::comm::ConnectTransport.
extern "C" __attribute__((visibility("default"))) sheaf::Expected<std::unique_ptr<sheaf::comm::Transport>>
sheaf_connect_transport(sheaf::comm::ProcessGroup& group, const sheaf::comm::TransportOptions& options,
                        const sheaf::comm::AbortSignal& abort) {
  return sheaf::comm::MpiTransport::connect(group, options, abort);
}
