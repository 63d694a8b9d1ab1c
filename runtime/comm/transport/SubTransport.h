// The view of a transport by a group of some of its processes, for a communicator between some of the ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/comm/transport/Transport.h"

namespace sheaf::comm {

class SubTransport : public Transport {
 public:
  // Process i of the group is `processes[i]` of the transport. Rail i is that of this process's rank rails[i]. The
  // transport must outlive it.
  SubTransport(Transport& all, std::vector<int64_t> processes, std::vector<int64_t> rails)
      : all_(all), processes_(std::move(processes)), rails_(std::move(rails)) {}

  Channel& channel(int64_t communicator, int64_t rail) override {
    channels_.push_back(
        std::make_unique<SubChannel>(all_.channel(communicator, rails_[static_cast<size_t>(rail)]), processes_));
    return *channels_.back();
  }
  void abort() override { all_.abort(); }

 private:
  class SubChannel : public Channel {
   public:
    SubChannel(Channel& all, const std::vector<int64_t>& processes) : all_(all), processes_(processes) {}
    void send(int64_t process, std::span<const std::byte> piece) override { all_.send(inAll(process), piece); }
    void receive(int64_t process, std::span<std::byte> piece) override { all_.receive(inAll(process), piece); }
    Expected<bool> poll(std::chrono::milliseconds wait) override { return all_.poll(wait); }
    uint64_t received(int64_t process) const override { return all_.received(inAll(process)); }
    bool idle(int64_t process) const override { return all_.idle(inAll(process)); }
    void countHeader(int64_t process, uint64_t bytes) override { all_.countHeader(inAll(process), bytes); }

   private:
    int64_t inAll(int64_t process) const { return processes_[static_cast<size_t>(process)]; }

    Channel& all_;
    const std::vector<int64_t>& processes_;
  };

  Transport& all_;
  const std::vector<int64_t> processes_, rails_;
  std::vector<std::unique_ptr<SubChannel>> channels_;
};

}  // namespace sheaf::comm
