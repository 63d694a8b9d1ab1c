// Transfers of files as the CPU ranks of a step make them: computation waits for them or runs at the same time, and
// other ranks transfer, too. MeasureDisk.cpp measures the disk alone.
#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "runtime/base/NewFiles.h"
#include "runtime/base/Text.h"
#include "runtime/measure/HandOff.h"
#include "runtime/measure/MeasureParts.h"
#include "runtime/measure/MeasuredCalls.h"

namespace sheaf::measure {
namespace {

using plan::Transfer;

// As many bytes as a small parameter's state has.
constexpr uint64_t kSmall = 64 << 10;
// What each rank transfers while all do, and what is transferred during computation.
constexpr uint64_t kAtOnce = 1 << 20, kDuring[] = {kSmall, 512 << 10, 4 << 20};
// What is read has been written.
constexpr Transfer::Kind kKinds[] = {Transfer::WRITE_FILE, Transfer::READ_FILE};

Expected<ScratchFolder> makeScratch(const std::string& disk) {
  Expected<ScratchFolder> folder = ScratchFolder::make(disk + "/sheaf-disk-");
  return folder.ok() ? std::move(folder) : Status::error(cat("measuring a disk: ", folder.status().message()));
}

profile::TransferCost* costOf(profile::ProfileData& data, Transfer::Kind kind) {
  const auto found = std::find_if(data.transfers.begin(), data.transfers.end(),
                                  [&](const profile::TransferCost& each) { return each.kind == kind; });
  return found == data.transfers.end() ? nullptr : &*found;
}

size_t groupOf(InstructionTimer& timer, Transfer::Kind kind, uint64_t bytes, uint64_t first = 0) {
  const size_t group = timer.group(kFootprints * bytes, first);
  for (int i = 0; i < kFootprints; ++i) timer.add(kind, bytes);
  return group;
}

// Adds to the latencies what transfers take longer where threads wake each other.
Status addHandOffs(Device& device, const MeasureOptions& options, const RankSet& set, const std::string& folder,
                   profile::ProfileData& data) {
  constexpr uint64_t kFile = 4 << 20;
  InstructionTimer timer(device, options, set, kFile, plan::Plan());
  timer.addSpace(plan::Buffer::FILE, kFile, folder);
  struct Measured {
    profile::TransferCost* cost;
    size_t alone;
    HandOff handing;
  };
  std::vector<Measured> all;
  for (const Transfer::Kind kind : kKinds)
    if (profile::TransferCost* const cost = costOf(data, kind)) {
      const size_t alone = groupOf(timer, kind, kSmall);
      all.push_back({cost, alone, HandOff(timer, timer.streamOf(kind), [&] { timer.add(kind, kSmall); })});
    }
  SHEAF_RETURN_IF_ERROR(timer.open());
  for (const Measured& one : all) {
    Expected<double> alone = timer.secondsOfAll(one.alone, kTypical);
    if (!alone.ok()) return alone.status();
    Expected<double> handed = one.handing.seconds();
    if (!handed.ok()) return handed.status();
    const double more = std::max(*handed - *alone, 0.0);
    one.cost->latency += more;
    one.cost->source += cat("; the latency as in a step: ", static_cast<int64_t>(more * 1e6),
                            " us more, until threads that wait for each other have woken");
  }
  return {};
}

// Seconds of a transfer of each of kKinds while all these ranks make one.
Expected<std::array<double, 2>> secondsAtOnce(Device& device, const MeasureOptions& options, int64_t ranks,
                                              const std::string& folder) {
  constexpr uint64_t kFile = kFootprints * kAtOnce;
  InstructionTimer timer(device, options, RankSet{ranks, 1}, kFile, plan::Plan());
  timer.addSpace(plan::Buffer::FILE, kFile, folder);
  std::array<size_t, 2> groups;
  for (size_t i = 0; i < 2; ++i) groups[i] = groupOf(timer, kKinds[i], kAtOnce);
  SHEAF_RETURN_IF_ERROR(timer.open());
  std::array<double, 2> taken;
  for (size_t i = 0; i < 2; ++i) {
    Expected<double> seconds = timer.secondsOfAll(groups[i], kTypical);
    if (!seconds.ok()) return seconds.status();
    taken[i] = *seconds;
  }
  return taken;
}

Status addAtOnce(Device& device, const MeasureOptions& options, const std::string& folder, profile::ProfileData& data) {
  if (options.ranks < 2) return {};
  Expected<std::array<double, 2>> one = secondsAtOnce(device, options, 1, folder);
  if (!one.ok()) return one.status();
  Expected<std::array<double, 2>> all = secondsAtOnce(device, options, options.ranks, folder);
  if (!all.ok()) return all.status();
  const double ranks = static_cast<double>(options.ranks);
  for (size_t i = 0; i < 2; ++i)
    if (profile::TransferCost* const cost = costOf(data, kKinds[i])) {
      // Of the bytes: latencies pass at the same time.
      auto ofBytes = [&](double seconds) { return std::max(seconds - cost->latency, seconds / 10); };
      cost->atOnce = {options.ranks, std::clamp(ranks * ofBytes((*one)[i]) / ofBytes((*all)[i]), 1.0, ranks)};
      cost->source += cat("; ", options.ranks, " ranks at once against one: 1 MiB each");
    }
  return {};
}

}  // namespace

Status measureFiles(Device& device, const MeasureOptions& options, const RankSet& whole, bool direct,
                    profile::ProfileData& data) {
  Expected<ScratchFolder> folder = makeScratch(options.disk);
  if (!folder.ok()) return folder.status();
  // Latencies are still those of the disk alone. What the page cache takes from several ranks is not what a disk does.
  if (direct) SHEAF_RETURN_IF_ERROR(addAtOnce(device, options, folder->path(), data));
  return addHandOffs(device, options, whole, folder->path(), data);
}

Status measureFileSlowdown(Device& device, const MeasureOptions& options, const RankSet& set,
                           profile::ComputeCost& cost) {
  Expected<ScratchFolder> folder = makeScratch(options.disk);
  if (!folder.ok()) return folder.status();
  // Each on bytes of its own, in memory and in the file: products, writes, and reads.
  constexpr uint64_t kProducts = 4 << 20;
  std::error_code ignored;
  const uint64_t room =
      std::filesystem::space(folder->path(), ignored).available / 4 / static_cast<uint64_t>(set.ranks);
  auto fileBytes = [](uint64_t bytes) { return kProducts + 2 * kFootprints * bytes; };
  std::vector<uint64_t> sizes;
  for (const uint64_t bytes : kDuring)
    if (fileBytes(bytes) <= room) sizes.push_back(bytes);
  if (sizes.empty()) return {};
  InstructionTimer timer(device, options, set, fileBytes(sizes.back()), plan::Plan());
  timer.addSpace(plan::Buffer::FILE, fileBytes(sizes.back()), folder->path());
  const size_t product = timer.group(kProducts);
  timer.add(gemmCall(plan::F32, 256, 256, 256, false, false), kFootprints);
  std::vector<std::vector<size_t>> transfers;  // by size: writes, and reads
  for (const uint64_t bytes : sizes)
    transfers.push_back({groupOf(timer, Transfer::WRITE_FILE, bytes, kProducts),
                         groupOf(timer, Transfer::READ_FILE, bytes, kProducts + kFootprints * bytes)});
  const size_t whole = groupOf(timer, Transfer::WRITE_FILE, 2 * sizes.back(), kProducts);
  SHEAF_RETURN_IF_ERROR(timer.open());
  // Blocks that were never written are quick to read.
  if (Expected<double> written = timer.together({whole}, {1}); !written.ok()) return written.status();
  auto timesOf = [&](size_t group, double seconds) -> Expected<int> {
    Expected<double> once = timer.secondsOfAll(group, kTypical);
    if (!once.ok()) return once.status();
    return std::max(static_cast<int>(seconds / (*once * timer.instructions(group))), 1);
  };
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::vector<int> times;
    for (const size_t group : transfers[i]) {
      Expected<int> each = timesOf(group, 0.005);
      if (!each.ok()) return each.status();
      times.push_back(*each);
    }
    Expected<double> transferring = timer.together(transfers[i], times);
    if (!transferring.ok()) return transferring.status();
    // There is computation to slow down as long as there are transfers.
    Expected<int> products = timesOf(product, 2 * *transferring);
    if (!products.ok()) return products.status();
    Expected<double> computing = timer.together({product}, {*products});
    if (!computing.ok()) return computing.status();
    Expected<double> both =
        timer.together({product, transfers[i][0], transfers[i][1]}, {*products, times[0], times[1]});
    if (!both.ok()) return both.status();
    cost.fileSlowdown.points.emplace_back(static_cast<double>(sizes[i]), slowdownOf(*computing, *transferring, *both));
  }
  cost.fileSlowdownSource = cat("measured: products of 256 x 256 x 256 during reads and writes of ", set.ranks,
                                set.ranks == 1 ? " rank" : " ranks");
  return {};
}

}  // namespace sheaf::measure
