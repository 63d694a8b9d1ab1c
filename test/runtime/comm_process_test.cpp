// The processes of a job, as threads of this one on the loopback address.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <map>
#include <thread>

#include "runtime/comm/process/Secret.h"
#include "runtime/comm/process/TcpProcessGroup.h"
#include "test/runtime/Processes.h"

namespace sheaf::testing {
namespace {

using comm::Endpoint;
using comm::findLaunch;
using comm::Launch;
using comm::TcpProcessGroup;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

using Variables = std::map<std::string, std::string>;

Expected<Launch> launchOf(const Variables& variables) {
  return findLaunch([&](const char* name) {
    auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal(const Variables& variables) {
  return launchOf(variables).status().message();
}

TEST(Launcher, NoLauncherIsAJobOfOne) {
  auto launch = launchOf({{"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}});
  ASSERT_TRUE(launch.ok());
  EXPECT_EQ(launch->size, 1);
  EXPECT_EQ(launch->launcher, "");
  EXPECT_EQ(launch->limit, std::chrono::seconds(300));
}

TEST(Launcher, Torchrun) {
  Variables set{{"RANK", "3"},
                {"WORLD_SIZE", "8"},
                {"LOCAL_RANK", "1"},
                {"MASTER_ADDR", "node0"},
                {"MASTER_PORT", "29500"},
                {"TORCHELASTIC_RUN_ID", "abc"},
                {"SHEAF_TIMEOUT", "2.5"}};
  auto launch = launchOf(set);
  ASSERT_TRUE(launch.ok()) << launch.status().message();
  EXPECT_EQ(launch->rank, 3);
  EXPECT_EQ(launch->size, 8);
  EXPECT_EQ(launch->localRank, 1);
  EXPECT_EQ(text(launch->rendezvous), "node0:29501");
  EXPECT_EQ(launch->job, "abc");
  EXPECT_EQ(launch->limit, milliseconds(2500));
  auto without = [&](const char* name) {
    Variables less = set;
    less.erase(name);
    return refusal(less);
  };
  EXPECT_THAT(without("RANK"), HasSubstr("RANK is not"));
  EXPECT_THAT(without("WORLD_SIZE"), HasSubstr("WORLD_SIZE is not"));
  EXPECT_THAT(without("MASTER_ADDR"), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(without("MASTER_PORT"), HasSubstr("MASTER_PORT is not set"));
  auto with = [&](const char* name, const char* value) {
    Variables other = set;
    other[name] = value;
    return refusal(other);
  };
  EXPECT_THAT(with("RANK", "8"), AllOf(HasSubstr("RANK is '8'"), HasSubstr("from 0 to 7")));
  EXPECT_THAT(with("RANK", "two"), HasSubstr("RANK is 'two'"));
  EXPECT_THAT(with("WORLD_SIZE", "0"), HasSubstr("WORLD_SIZE is '0'"));
  EXPECT_THAT(with("LOCAL_RANK", "-1"), HasSubstr("LOCAL_RANK is '-1'"));
  EXPECT_THAT(with("MASTER_PORT", "65535"), HasSubstr("MASTER_PORT is '65535'"));
  EXPECT_THAT(with("SHEAF_TIMEOUT", "0"), HasSubstr("SHEAF_TIMEOUT is '0'"));
  EXPECT_THAT(with("SHEAF_RENDEZVOUS", "node1"), HasSubstr("SHEAF_RENDEZVOUS: 'node1' is not host:port"));
  EXPECT_THAT(with("SHEAF_RENDEZVOUS", "::1:5"), HasSubstr("[address]:port"));
  set["SHEAF_RENDEZVOUS"] = "[::1]:77";
  EXPECT_EQ(launchOf(set)->rendezvous.host, "::1");
  EXPECT_EQ(launchOf(set)->rendezvous.port, 77);
}

// Ranks on CPUs do without, so it is an error only where the number is asked for.
TEST(Launcher, NoLocalRankIsNotTheFirst) {
  const Variables torchrun{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};
  auto launch = launchOf(torchrun);
  ASSERT_TRUE(launch.ok()) << launch.status().message();
  EXPECT_FALSE(launch->localRank.has_value());
  EXPECT_THAT(requireLocalRank(*launch).status().message(),
              AllOf(StartsWith("LOCAL_RANK is not set; "), HasSubstr("LOCAL_RANK (torchrun)"),
                    HasSubstr("OMPI_COMM_WORLD_LOCAL_RANK (Open MPI)"), HasSubstr("MPI_LOCALRANKID (MPICH)"),
                    HasSubstr("SLURM_LOCALID (Slurm)")));
  Variables more = torchrun;
  more["LOCAL_RANK"] = "1";
  EXPECT_EQ(*requireLocalRank(*launchOf(more)), 1);
}

TEST(Launcher, OpenMpi) {
  Variables set{{"OMPI_COMM_WORLD_RANK", "1"},
                {"OMPI_COMM_WORLD_SIZE", "2"},
                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                {"PMIX_NAMESPACE", "12345"}};
  auto launch = launchOf(set);
  ASSERT_TRUE(launch.ok()) << launch.status().message();
  EXPECT_EQ(launch->rank, 1);
  EXPECT_EQ(launch->launcher, "Open MPI");
  EXPECT_EQ(launch->rendezvous.host, "127.0.0.1");
  EXPECT_GE(launch->rendezvous.port, 20000);
  uint16_t port = launch->rendezvous.port;
  set["PMIX_NAMESPACE"] = "12346";
  EXPECT_NE(launchOf(set)->rendezvous.port, port);
  set["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  EXPECT_THAT(refusal(set), HasSubstr("SHEAF_RENDEZVOUS=host:port"));
  set["MASTER_ADDR"] = "10.0.0.1";
  set["MASTER_PORT"] = "4000";
  EXPECT_EQ(text(launchOf(set)->rendezvous), "10.0.0.1:4001");
  set.erase("OMPI_COMM_WORLD_RANK");
  EXPECT_THAT(refusal(set), HasSubstr("OMPI_COMM_WORLD_RANK is not"));
}

TEST(Launcher, Mpich) {
  auto launch = launchOf({{"PMI_RANK", "2"},
                          {"PMI_SIZE", "4"},
                          {"MPI_LOCALRANKID", "2"},
                          {"MPI_LOCALNRANKS", "4"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_PROCID", "0"},
                          {"SLURM_NTASKS", "1"}});
  ASSERT_TRUE(launch.ok()) << launch.status().message();
  EXPECT_EQ(launch->launcher, "MPICH");
  EXPECT_EQ(launch->rank, 2);
  EXPECT_EQ(launch->localRank, 2);
  EXPECT_THAT(refusal({{"PMI_RANK", "4"}, {"PMI_SIZE", "4"}}), HasSubstr("PMI_RANK is '4'"));
}

// Two jobs on one host must not meet on one port. Here this process is its own proxy.
TEST(Launcher, JobsOfMpichAreDistinguishedByTheirProxies) {
  int connection[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, connection), 0);
  Variables set{{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}};
  const uint16_t portOfAll = launchOf(set)->rendezvous.port;
  EXPECT_EQ(launchOf(set)->job, "");
  set["PMI_FD"] = std::to_string(connection[0]);
  EXPECT_EQ(launchOf(set)->job, "hydra." + std::to_string(getpid()));
  EXPECT_NE(launchOf(set)->rendezvous.port, portOfAll);
  // With one proxy for each host, its id does not identify the job.
  set["MPI_LOCALNRANKS"] = "1";
  set["SHEAF_RENDEZVOUS"] = "10.0.0.1:4000";
  EXPECT_EQ(launchOf(set)->job, "");
  for (int descriptor : connection) close(descriptor);
}

TEST(Launcher, Slurm) {
  Variables set{{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"},  {"SLURM_LOCALID", "1"},
                {"SLURM_JOB_ID", "9"}, {"SLURM_STEP_ID", "2"}, {"SLURM_LAUNCH_NODE_IPADDR", "10.1.1.1"},
                {"PMI_RANK", "5"},     {"PMI_SIZE", "8"}};
  auto launch = launchOf(set);
  ASSERT_TRUE(launch.ok()) << launch.status().message();
  EXPECT_EQ(launch->launcher, "Slurm");
  EXPECT_EQ(launch->rank, 5);
  EXPECT_EQ(launch->size, 8);
  EXPECT_EQ(launch->job, "9.2");
  EXPECT_EQ(launch->rendezvous.host, "10.1.1.1");
  for (auto [list, first] : {std::pair("n1", "n1"),
                             {"n1,n2", "n1"},
                             {"gpu[07-09,12],n1", "gpu07"},
                             {"a[3,5]-ib,b", "a3-ib"},
                             {"a[12]", "a12"},
                             {"a[12", "a12"}}) {
    set["SLURM_JOB_NODELIST"] = list;
    EXPECT_EQ(launchOf(set)->rendezvous.host, first) << list;
  }
  set["SLURM_STEP_NUM_TASKS"] = "6";
  EXPECT_EQ(launchOf(set)->size, 6);
  set["SLURM_PROCID"] = "6";
  EXPECT_THAT(refusal(set), HasSubstr("SLURM_PROCID is '6'"));
}

TEST(Launcher, KubernetesIndexedJob) {
  Variables set{{"JOB_COMPLETION_INDEX", "3"}, {"SHEAF_PROCESSES", "4"}, {"SHEAF_RENDEZVOUS", "train-0.train:29400"}};
  auto launch = launchOf(set);
  ASSERT_TRUE(launch.ok()) << launch.status().message();
  EXPECT_EQ(launch->launcher, "Kubernetes");
  EXPECT_EQ(launch->rank, 3);
  EXPECT_EQ(launch->size, 4);
  EXPECT_EQ(launch->localRank, 0);
  EXPECT_EQ(text(launch->rendezvous), "train-0.train:29400");
  auto with = [&](const char* name, const char* value) {
    Variables other = set;
    other[name] = value;
    return refusal(other);
  };
  EXPECT_THAT(with("JOB_COMPLETION_INDEX", "4"), HasSubstr("JOB_COMPLETION_INDEX is '4'"));
  EXPECT_THAT(with("SHEAF_PROCESSES", ""), AllOf(HasSubstr("SHEAF_PROCESSES is not"), HasSubstr("completions")));
  EXPECT_THAT(with("SHEAF_RENDEZVOUS", ""), AllOf(HasSubstr("SHEAF_RENDEZVOUS is not set"), HasSubstr("Service")));
  // Pods that are runs of their own.
  set["SHEAF_PROCESSES"] = "1";
  EXPECT_EQ(launchOf(set)->size, 1);
  EXPECT_EQ(launchOf(set)->rank, 0);
  // Kubeflow's jobs and torchrun in a pod set RANK: it counts.
  set["RANK"] = "1", set["WORLD_SIZE"] = "2", set["MASTER_ADDR"] = "a", set["MASTER_PORT"] = "1";
  EXPECT_EQ(launchOf(set)->launcher, "torchrun");
}

// Pods of a Job that is not Indexed, for example.
TEST(Launcher, VariablesWithoutALauncher) {
  Variables set{{"SHEAF_PROCESSES", "1"}, {"SHEAF_RENDEZVOUS", "train-0.train:29400"}};
  for (const char* one : {"1", "01"}) {
    set["SHEAF_PROCESSES"] = one;
    EXPECT_EQ(launchOf(set)->size, 1);
    EXPECT_EQ(launchOf(set)->warning, "");
  }
  set["SHEAF_PROCESSES"] = "many";
  EXPECT_THAT(refusal(set), HasSubstr("SHEAF_PROCESSES is 'many'"));
  set["SHEAF_PROCESSES"] = "4";
  EXPECT_THAT(refusal(set), AllOf(HasSubstr("JOB_COMPLETION_INDEX is not set"), HasSubstr("completionMode: Indexed")));
  set.erase("SHEAF_PROCESSES");
  EXPECT_THAT(launchOf(set)->warning, HasSubstr("SHEAF_RENDEZVOUS has no effect: no launcher has set the rank"));
}

TEST(Launcher, WhichMpi) {
  auto mpiOf = [](const Variables& variables) {
    return comm::findMpi([&](const char* name) {
      auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  };
  EXPECT_EQ(*mpiOf({{"OMPI_COMM_WORLD_RANK", "0"}, {"PMIX_RANK", "0"}}), "openmpi");
  EXPECT_EQ(*mpiOf({{"SLURM_PROCID", "0"}, {"PMIX_RANK", "0"}}), "openmpi");
  EXPECT_EQ(*mpiOf({{"PMI_RANK", "0"}}), "mpich");
  EXPECT_EQ(*mpiOf({{"PMI_RANK", "0"}, {"SHEAF_MPI", "openmpi"}}), "openmpi");
  EXPECT_THAT(mpiOf({{"RANK", "0"}}).status().message(), AllOf(HasSubstr("mpirun"), HasSubstr("srun --mpi=pmix")));
  EXPECT_THAT(mpiOf({{"SHEAF_MPI", "lam"}}).status().message(), HasSubstr("SHEAF_MPI is 'lam'"));
}

TEST(Launcher, SecretsAreLong) {
  EXPECT_EQ(launchOf({{"SHEAF_SECRET", "0123456789abcdef"}})->secret, "0123456789abcdef");
  const std::string why = refusal({{"SHEAF_SECRET", "0123456789abcde"}});
  EXPECT_THAT(why, HasSubstr("SHEAF_SECRET has 15 characters"));
  EXPECT_THAT(why, ::testing::Not(HasSubstr("789")));
  // Set by a command that has failed: the job must not begin without one.
  EXPECT_THAT(refusal({{"SHEAF_SECRET", ""}}), HasSubstr("SHEAF_SECRET is set, but empty"));
  EXPECT_TRUE(launchOf({}).ok());
}

comm::Secret secretOf(const std::string& text) {
  auto secret = comm::Secret::open(text);
  EXPECT_TRUE(secret.ok()) << secret.status().message();
  return *secret;
}

std::string hex(const std::string& bytes) {
  std::string text;
  for (unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

// RFC 4231, sections 4.2, 4.3, 4.4 and 4.8, and the comparison.
TEST(Secret, IsTheKeyOfAnHmacSha256) {
  auto hmac = [](const std::string& key, const std::string& message) { return hex(*secretOf(key).hmac(message)); };
  EXPECT_EQ(hmac(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac(std::string(20, '\xaa'), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(hmac(std::string(131, '\xaa'),
                 "This is a test using a larger than block-size key and a larger than block-size data. The key "
                 "needs to be hashed before being used by the HMAC algorithm."),
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
  const comm::Secret secret = secretOf("a long and random secret");
  const std::string proof = *secret.joinProof("hello", "nonce");
  EXPECT_TRUE(secret.equal(proof, secret.joinProof("hello", "nonce")));
  EXPECT_FALSE(secret.equal(proof.substr(1), secret.joinProof("hello", "nonce")));
  EXPECT_FALSE(secret.equal("", secret.joinProof("hello", "nonce")));
  EXPECT_FALSE(secret.equal("", Status::error("no proof")));
  for (size_t i = 0; i < proof.size(); ++i) {
    std::string other = proof;
    other[i] = static_cast<char>(other[i] ^ 1);
    EXPECT_FALSE(secret.equal(other, secret.joinProof("hello", "nonce"))) << i;
  }
}

TEST(Secret, NeedsLibcrypto) {
  EXPECT_THAT(comm::Secret::open("a long and random secret", "libcrypto.so.none").status().message(),
              AllOf(HasSubstr("SHEAF_SECRET needs"), HasSubstr("libssl3"), HasSubstr("libcrypto.so.none")));
  EXPECT_THAT(comm::Secret::open("a long and random secret", "libc.so.6").status().message(),
              HasSubstr("which libc.so.6 is not"));
}

TEST(Joining, AddressesTellHosts) {
  EXPECT_FALSE(comm::onSeveralHosts({{"a", "127.0.0.1"}, {"a", "127.0.0.1"}}));
  EXPECT_FALSE(comm::onSeveralHosts({{"a", "10.0.0.1"}, {"a", "10.0.0.1"}, {"a", "10.0.0.1"}}));
  EXPECT_TRUE(comm::onSeveralHosts({{"a", "10.0.0.1"}, {"a", "10.0.0.1"}, {"b", "10.0.0.2"}}));
}

TEST(TcpProcessGroup, ExchangesInRankOrder) {
  onProcesses(4, milliseconds(20000), [](TcpProcessGroup& group) {
    for (int round = 0; round < 50; ++round) {
      auto all = group.allGather(std::to_string(group.rank() * 100 + round), "a round");
      ASSERT_TRUE(all.ok()) << all.status().message();
      for (int64_t i = 0; i < 4; ++i) EXPECT_EQ((*all)[static_cast<size_t>(i)], std::to_string(i * 100 + round));
      std::string large(static_cast<size_t>(group.rank()) * 1000000, static_cast<char>('a' + group.rank()));
      auto first = group.gather(large, "large");
      ASSERT_TRUE(first.ok()) << first.status().message();
      EXPECT_EQ(first->size(), group.rank() == 0 ? 4u : 0u);
      if (group.rank() == 0) {
        EXPECT_EQ((*first)[3], std::string(3000000, 'd'));
      }
    }
    EXPECT_TRUE(group.barrier("the end").ok());
    EXPECT_EQ(group.address(1), "127.0.0.1");
    EXPECT_THAT(group.describe(2), HasSubstr("process 2 ("));
    EXPECT_TRUE(group.leave().ok());
    EXPECT_FALSE(group.barrier("afterwards").ok());
  });
}

TEST(TcpProcessGroup, NobodyIsLostByLeaving) {
  std::atomic<int> lost = 0;
  onProcesses(3, milliseconds(20000), [&](TcpProcessGroup& group) {
    group.watch([&](const Status&) { ++lost; });
    std::this_thread::sleep_for(milliseconds(10 * group.rank()));
    EXPECT_TRUE(group.leave().ok());
  });
  EXPECT_EQ(lost, 0);
}

TEST(TcpProcessGroup, OtherExchangesAreNamed) {
  onProcesses(3, milliseconds(20000), [](TcpProcessGroup& group) {
    Status status = group.barrier(group.rank() == 1 ? "saving" : "loading");
    EXPECT_THAT(status.message(), AllOf(HasSubstr("'saving'"), HasSubstr("'loading'"), HasSubstr("process 1 (")));
  });
}

// Each process watches, and process `culprit` does something; the reasons that the others get.
template <typename Deed>
std::vector<std::string> reasonsAfter(int64_t culprit, milliseconds limit, Deed deed) {
  std::vector<std::string> reasons(3);
  onProcesses(3, limit, [&](TcpProcessGroup& group) {
    std::promise<std::string> heard;
    auto why = heard.get_future();
    group.watch([&](const Status& status) { heard.set_value(status.message()); });
    EXPECT_TRUE(group.barrier("the beginning").ok());
    if (group.rank() == culprit) return deed(group);
    Status status = group.barrier("never");
    ASSERT_EQ(why.wait_for(std::chrono::seconds(15)), std::future_status::ready);
    reasons[static_cast<size_t>(group.rank())] = why.get();
    EXPECT_EQ(status.message(), reasons[static_cast<size_t>(group.rank())]);
  });
  return reasons;
}

TEST(TcpProcessGroup, ADeathIsReportedToAll) {
  for (int64_t culprit : {0, 1, 2}) {
    auto begin = comm::Clock::now();
    std::vector<std::string> reasons = reasonsAfter(culprit, milliseconds(20000), [](TcpProcessGroup&) {});
    EXPECT_LT(comm::Clock::now() - begin, std::chrono::seconds(10));
    for (int64_t i = 0; i < 3; ++i)
      if (i != culprit) {
        EXPECT_THAT(reasons[static_cast<size_t>(i)], AllOf(HasSubstr("process " + std::to_string(culprit) + " ("),
                                                           HasSubstr("ended without a message")));
      }
  }
}

TEST(TcpProcessGroup, AFailureIsReportedToAllInItsWords) {
  for (int64_t culprit : {0, 2}) {
    auto reasons = reasonsAfter(culprit, milliseconds(20000), [](TcpProcessGroup& group) {
      group.fail("the disk is full");
      EXPECT_EQ(group.barrier("more").message(), "the disk is full");
    });
    for (int64_t i = 0; i < 3; ++i)
      if (i != culprit) {
        EXPECT_THAT(reasons[static_cast<size_t>(i)],
                    AllOf(HasSubstr("process " + std::to_string(culprit) + " ("), HasSubstr("): the disk is full")));
      }
  }
}

TEST(TcpProcessGroup, WhoDoesNotComeIsNamed) {
  for (int64_t culprit : {0, 1}) {
    auto reasons = reasonsAfter(culprit, milliseconds(1000),
                                [](TcpProcessGroup&) { std::this_thread::sleep_for(milliseconds(2500)); });
    EXPECT_THAT(reasons[2], AllOf(HasSubstr("never: "), HasSubstr("process " + std::to_string(culprit) + " (")));
  }
}

TEST(TcpProcessGroup, TooFewProcesses) {
  uint16_t port = freePort();
  auto join = [&](int64_t rank) {
    return TcpProcessGroup::join(launchFor(rank, 3, port, milliseconds(700))).status().message();
  };
  std::string second;
  std::thread other([&] { second = join(2); });
  std::string first = join(0);
  other.join();
  EXPECT_THAT(first, AllOf(HasSubstr("2 of 3 processes"), HasSubstr("missing: 1"), HasSubstr("SHEAF_TIMEOUT")));
  EXPECT_EQ(second, first);
  EXPECT_THAT(join(1), AllOf(HasSubstr("did not reach process 0"), HasSubstr("refused")));
  std::atomic<bool> cancel = true;
  auto cancelled = TcpProcessGroup::join(launchFor(0, 3, port, milliseconds(20000)), [&] { return cancel.load(); });
  EXPECT_THAT(cancelled.status().message(), HasSubstr("interrupted"));
}

TEST(TcpProcessGroup, MissingProcessesAreReportedBeforeTheLimit) {
  const uint16_t port = freePort();
  auto join = [&](int64_t rank) {
    std::vector<std::string> reports;
    Status status =
        TcpProcessGroup::join(launchFor(rank, 4, port, milliseconds(900)), nullptr, [&](const std::string& text) {
          reports.push_back(text);
        }).status();
    EXPECT_FALSE(status.ok());
    return reports;
  };
  // Process 2 has joined, and says nothing.
  std::vector<std::string> second;
  std::thread other([&] { second = join(2); });
  const std::vector<std::string> first = join(0);
  other.join();
  ASSERT_EQ(first.size(), 1u);
  EXPECT_THAT(first[0], AllOf(HasSubstr("waiting for other processes: 2 of 4"), HasSubstr("missing: 1, 3")));
  EXPECT_TRUE(second.empty());
  const std::vector<std::string> alone = join(1);
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_THAT(alone[0], HasSubstr("process 1 waits for process 0: "));
}

TEST(TcpProcessGroup, WhoDoesNotBelongIsRefusedWithTheReason) {
  uint16_t port = freePort();
  std::thread coordinator([&] {
    auto group = TcpProcessGroup::join(launchFor(0, 2, port, milliseconds(20000)));
    ASSERT_TRUE(group.ok()) << group.status().message();
    EXPECT_TRUE((*group)->leave().ok());
  });
  auto join = [&](const Launch& launch) { return TcpProcessGroup::join(launch).status().message(); };
  EXPECT_THAT(join(launchFor(1, 3, port, milliseconds(9000))), HasSubstr("its job has 3 processes"));
  Launch other = launchFor(1, 2, port, milliseconds(9000));
  other.job = "another";
  EXPECT_THAT(join(other), HasSubstr("'another'"));
  auto group = TcpProcessGroup::join(launchFor(1, 2, port, milliseconds(9000)));
  ASSERT_TRUE(group.ok()) << group.status().message();
  EXPECT_TRUE((*group)->leave().ok());
  coordinator.join();
}

// What process 0 and process 1 say of a job of two if each has its secret ("" is none).
std::pair<std::string, std::string> joinWith(const std::string& first, const std::string& second) {
  const uint16_t port = freePort();
  auto join = [&](int64_t rank, const std::string& secret) {
    Launch launch = launchFor(rank, 2, port, milliseconds(rank == 0 ? 1000 : 5000));
    launch.secret = secret;
    auto group = TcpProcessGroup::join(launch);
    if (group.ok()) {
      EXPECT_TRUE((*group)->leave().ok());
    }
    return group.status().message();
  };
  auto coordinator = std::async(std::launch::async, [&] { return join(0, first); });
  const std::string said = join(1, second);
  return {coordinator.get(), said};
}

TEST(TcpProcessGroup, AllKnowTheSecretOrAreRefused) {
  const std::string secret = "a long and random secret", other = "a long and random secreT";
  EXPECT_THAT(joinWith(secret, secret), Pair("", ""));
  for (auto [first, second, why] : {std::tuple(secret, other, "its SHEAF_SECRET is not that of process 0"),
                                    {secret, "", "SHEAF_SECRET is set for process 0, but not for it"},
                                    {"", secret, "SHEAF_SECRET is set for it, but not for process 0"}}) {
    const auto begin = comm::Clock::now();
    auto [here, there] = joinWith(first, second);
    EXPECT_LT(comm::Clock::now() - begin, std::chrono::seconds(4));
    EXPECT_THAT(here, AllOf(HasSubstr("missing: 1"), HasSubstr("was refused: "), HasSubstr(why)));
    EXPECT_THAT(there, AllOf(HasSubstr("process 0 refuses process 1: "), HasSubstr(why)));
  }
}

comm::Frame next(comm::Connection& connection) {
  for (;;) {
    auto frames = connection.receive(comm::kMaxFrameBytes, 1);
    if (frames.ok() && !frames->empty()) return frames->front();
    if (!frames.ok() || connection.ended()) return {};
  }
}

comm::Connection reach(uint16_t port) {
  for (;;) {
    auto socket = comm::connectTo({"127.0.0.1", port}, comm::Clock::now() + milliseconds(500));
    if (socket.ok()) return comm::Connection(std::move(*socket));
  }
}

comm::Socket accepted(const comm::Socket& listener) {
  for (;;)
    if (auto socket = comm::acceptFrom(listener); !socket.ok() || socket->open()) return std::move(*socket);
}

// A process that has recorded a whole handshake sends it again: process 0 asks with another nonce.
TEST(TcpProcessGroup, ARecordedHandshakeIsRefused) {
  const std::string secret = "a long and random secret";
  const std::string hello =
      comm::Packer().number(3).number(2).number(1).string("").string("here").string(std::string(32, 'n')).bytes();
  std::string recorded;
  for (bool replayed : {false, true}) {
    const uint16_t port = freePort();
    auto coordinator = std::async(std::launch::async, [&] {
      Launch launch = launchFor(0, 2, port, milliseconds(1500));
      launch.secret = secret;
      return TcpProcessGroup::join(launch).status().message();
    });
    comm::Connection connection = reach(port);
    connection.send(comm::FrameType::kHello, 0, hello);
    ASSERT_TRUE(connection.flush().ok());
    const comm::Frame challenge = next(connection);
    ASSERT_EQ(challenge.type, comm::FrameType::kChallenge);
    if (!replayed) recorded = *secretOf(secret).joinProof(hello, challenge.bytes);
    connection.send(comm::FrameType::kProof, 0, recorded);
    ASSERT_TRUE(connection.flush().ok());
    const comm::Frame answer = next(connection);
    EXPECT_EQ(answer.type, replayed ? comm::FrameType::kRefusal : comm::FrameType::kWelcome);
    connection.finish();
    EXPECT_THAT(coordinator.get(), replayed ? HasSubstr("SHEAF_SECRET is not that") : HasSubstr(""));
  }
}

// A process 0 that does not know the secret is not believed, whatever it answers.
TEST(TcpProcessGroup, AnImpostorInPlaceOfProcess0IsNotBelieved) {
  const std::string members =
      comm::Packer().string("here").string("127.0.0.1").string("there").string("127.0.0.1").bytes();
  for (bool challenges : {false, true}) {
    auto listener = comm::listenOn({"127.0.0.1", 0});
    ASSERT_TRUE(listener.ok());
    Launch launch = launchFor(1, 2, comm::localPort(*listener), milliseconds(5000));
    launch.secret = "a long and random secret";
    auto joining = std::async(std::launch::async, [&] { return TcpProcessGroup::join(launch).status().message(); });
    comm::Connection connection(accepted(*listener));
    const comm::Frame hello = next(connection);
    const std::string nonce(32, 'n');
    if (challenges) {
      connection.send(comm::FrameType::kChallenge, 0, nonce);
      ASSERT_TRUE(connection.flush().ok());
      EXPECT_EQ(next(connection).bytes, *secretOf(launch.secret).joinProof(hello.bytes, nonce));
    }
    const std::string proof = *secretOf("another secret").welcomeProof(hello.bytes, nonce, members);
    connection.send(comm::FrameType::kWelcome, 0, comm::Packer().string(members).string(proof).bytes());
    ASSERT_TRUE(connection.flush().ok());
    EXPECT_THAT(joining.get(), HasSubstr("does not know SHEAF_SECRET"));
  }
}

std::string frame(uint32_t type, uint32_t size, const std::string& bytes) {
  uint32_t header[4] = {0x31464853, type, 0, size};
  return std::string(reinterpret_cast<char*>(header), sizeof header) + bytes;
}

// The members of a job of two, as its welcome has them.
std::string twoMembers() {
  return comm::Packer().string("here").string("127.0.0.1").string("there").string("127.0.0.1").bytes();
}

// Process 0 fails right after the others have joined: the welcome, its error and its end arrive together.
TEST(TcpProcessGroup, AFailureTogetherWithTheWelcomeIsHeard) {
  for (int round = 0; round < 20; ++round) {
    auto listener = comm::listenOn({"127.0.0.1", 0});
    ASSERT_TRUE(listener.ok());
    const uint16_t port = comm::localPort(*listener);
    const bool fails = round % 2 == 0;  // or ends without a word
    auto joining = std::async(std::launch::async, [&] {
      auto group = TcpProcessGroup::join(launchFor(1, 2, port, milliseconds(8000)));
      if (!group.ok()) return group.status().message();
      std::promise<std::string> heard;
      (*group)->watch([&](const Status& why) { heard.set_value(why.message()); });
      const std::string said = (*group)->barrier("the start").message();
      EXPECT_EQ(heard.get_future().get(), said);
      return said;
    });
    comm::Connection connection(accepted(*listener));
    EXPECT_EQ(next(connection).type, comm::FrameType::kHello);
    connection.send(comm::FrameType::kWelcome, 0, comm::Packer().string(twoMembers()).string("").bytes());
    if (fails) connection.send(comm::FrameType::kFailure, 0, "process 0 (here): the disk is full");
    ASSERT_TRUE(connection.flush().ok());
    connection.finish();
    const auto begin = comm::Clock::now();
    EXPECT_THAT(joining.get(), fails ? HasSubstr("process 0 (here): the disk is full")
                                     : HasSubstr("process 0 (here) has ended without a message"));
    EXPECT_LT(comm::Clock::now() - begin, std::chrono::seconds(4));
  }
}

TEST(Connection, FramesComeBeforeTheEnd) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
  comm::Connection sender{comm::Socket(pair[0])}, receiver{comm::Socket(pair[1])};
  for (const char* text : {"one", "two", "three"}) sender.send(comm::FrameType::kFailure, 0, text);
  ASSERT_TRUE(sender.flush().ok());
  ASSERT_EQ(send(pair[0], "and sixteen bytes of no frame", 16, 0), 16);
  sender.finish();
  auto first = receiver.receive(comm::kMaxGreetingBytes, 1), rest = receiver.receive(comm::kMaxGreetingBytes);
  ASSERT_TRUE(first.ok() && rest.ok());
  ASSERT_EQ(first->size(), 1u);
  ASSERT_EQ(rest->size(), 2u);
  EXPECT_EQ(first->front().bytes + rest->front().bytes + rest->back().bytes, "onetwothree");
  EXPECT_TRUE(receiver.waiting());
  EXPECT_FALSE(receiver.ended());
  EXPECT_FALSE(receiver.receive(comm::kMaxGreetingBytes).ok());
  EXPECT_TRUE(receiver.ended());
}

// A false process 0 is given little memory, and its words reach a terminal as text.
TEST(TcpProcessGroup, UnprovedAnswersAreSmallAndShown) {
  for (const std::string& answer :
       {frame(3, 64 << 10 | 1, std::string(1 << 20, 'x')), frame(3, 1 << 30, std::string(1 << 20, 'x'))}) {
    auto listener = comm::listenOn({"127.0.0.1", 0});
    ASSERT_TRUE(listener.ok());
    auto joining = std::async(std::launch::async, [port = comm::localPort(*listener)] {
      return TcpProcessGroup::join(launchFor(1, 2, port, milliseconds(5000))).status().message();
    });
    const comm::Socket socket = accepted(*listener);
    (void)!send(socket.descriptor(), answer.data(), answer.size(), MSG_NOSIGNAL);
    EXPECT_THAT(joining.get(), HasSubstr("does not use the protocol of sheaf-run"));
  }
  auto listener = comm::listenOn({"127.0.0.1", 0});
  ASSERT_TRUE(listener.ok());
  auto joining = std::async(std::launch::async, [port = comm::localPort(*listener)] {
    return TcpProcessGroup::join(launchFor(1, 2, port, milliseconds(5000))).status().message();
  });
  comm::Connection connection(accepted(*listener));
  connection.send(comm::FrameType::kRefusal, 0, "\x1b]0;owned\a\nsheaf-run: done");
  ASSERT_TRUE(connection.flush().ok());
  EXPECT_THAT(joining.get(), HasSubstr(R"(refuses process 1: \x1b]0;owned\x07\x0asheaf-run: done)"));
}

// Bytes of other programs arrive at process 0 while a job waits; the job still starts.
void disturb(const std::vector<std::string>& greetings) {
  uint16_t port = freePort();
  std::vector<comm::Socket> others;
  auto coordinator = std::async(std::launch::async, [&] {
    auto group = TcpProcessGroup::join(launchFor(0, 2, port, milliseconds(20000)));
    if (group.ok()) {
      EXPECT_TRUE((*group)->leave().ok());
    }
    return group.status().message();
  });
  for (const std::string& greeting : greetings) {
    for (;;) {
      auto socket = comm::connectTo({"127.0.0.1", port}, comm::Clock::now() + milliseconds(500));
      if (!socket.ok()) continue;  // process 0 does not listen yet
      others.push_back(std::move(*socket));
      break;
    }
    ASSERT_EQ(send(others.back().descriptor(), greeting.data(), greeting.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(greeting.size()));
  }
  auto group = TcpProcessGroup::join(launchFor(1, 2, port, milliseconds(9000)));
  ASSERT_TRUE(group.ok()) << group.status().message();
  EXPECT_TRUE((*group)->leave().ok());
  EXPECT_EQ(coordinator.get(), "");
}

TEST(TcpProcessGroup, OtherConnectionsDoNotDisturb) {
  Numbers numbers(7);
  std::vector<std::string> greetings{"",
                                     "GET / HTTP/1.1\r\n\r\n",
                                     std::string(100000, 'x'),
                                     frame(1, 0xffffffff, ""),
                                     frame(1, 4097, ""),
                                     frame(1, 8, "abcdefgh"),
                                     frame(1, 24, std::string(16, '\0') + std::string(8, '\xff')),
                                     frame(99, 0, ""),
                                     frame(4, 0, ""),
                                     frame(3, 0, "")};
  for (int i = 0; i < 50; ++i) {
    std::string noise = frame(1 + static_cast<uint32_t>(numbers.below(9)), 40, std::string(40, '\0'));
    for (char& byte : noise)
      if (numbers.below(3) == 0) byte = static_cast<char>(numbers.bits());
    greetings.push_back(noise);
  }
  disturb(greetings);
}

TEST(TcpProcessGroup, GarbageFromAMemberEndsTheJob) {
  // A member by its greeting that then sends an invalid frame, a frame that is too large, one that is not its turn.
  for (const std::string& garbage : {std::string("\1\2\3\4garbage garbage garbage"), frame(4, 0x7fffffff, ""),
                                     frame(4, 3, "abc"), frame(5, 0, ""), frame(1, 0, "")}) {
    uint16_t port = freePort();
    auto coordinator = std::async(std::launch::async, [&] {
      auto group = TcpProcessGroup::join(launchFor(0, 2, port, milliseconds(20000)));
      return group.ok() ? (*group)->barrier("x").message() : group.status().message();
    });
    Expected<comm::Socket> socket = Status::error("");
    while (!socket.ok()) socket = comm::connectTo({"127.0.0.1", port}, comm::Clock::now() + milliseconds(500));
    comm::Connection connection(std::move(*socket));
    connection.send(comm::FrameType::kHello, 0,
                    comm::Packer().number(3).number(2).number(1).string("").string("here").string("").bytes());
    ASSERT_TRUE(connection.flush().ok());
    std::vector<comm::Frame> welcome;
    while (welcome.empty()) welcome = *connection.receive(comm::kMaxFrameBytes);
    EXPECT_EQ(welcome[0].type, comm::FrameType::kWelcome);
    send(connection.socket().descriptor(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    connection.finish();
    EXPECT_THAT(coordinator.get(), HasSubstr("process 1 (here)"));
  }
}

TEST(TcpProcessGroup, AMessageThatIsTooLargeIsRefused) {
  onProcesses(2, milliseconds(20000), [](TcpProcessGroup& group) {
    std::string large(TcpProcessGroup::kMaxMessageBytes + 1, 'x');
    if (group.rank() == 1) {
      EXPECT_THAT(group.allGather(large, "large").status().message(), HasSubstr("too large"));
    }
    EXPECT_TRUE(group.leave().ok());
  });
}

}  // namespace
}  // namespace sheaf::testing
