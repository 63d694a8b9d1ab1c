#include "runtime/comm/process/Join.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/base/Print.h"
#include "runtime/base/RegularFile.h"
#include "runtime/base/Text.h"
#include "runtime/comm/process/Secret.h"
#include "runtime/comm/socket/Acceptor.h"

namespace sheaf::comm {
namespace {

constexpr uint64_t kProtocol = 3;
constexpr std::chrono::milliseconds kLook(100);
// Limits on connections that have not identified themselves: time, and number at once.
constexpr std::chrono::seconds kHelloTime(10);
constexpr size_t kMaxPending = 256;
// Until the first report of missing processes, at most a third of the limit, and between two.
constexpr std::chrono::milliseconds kFirstReport(10000), kNextReport(30000);
constexpr size_t kMaxText = 256;
// A packed member: its host name, its address, and their sizes.
constexpr size_t kMaxMemberBytes = kMaxText + 128;

Status gaveUp() {
  return Status::error("interrupted while waiting for the other processes");
}

std::string seconds(std::chrono::milliseconds time) {
  return secondsText(static_cast<double>(time.count()) / 1000);
}

std::string hostName() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

using Report = std::function<void(const std::string& text)>;

// Says when it is time to report what a process waits for.
class ReportTimes {
 public:
  explicit ReportTimes(std::chrono::milliseconds limit) : next_(Clock::now() + std::min(kFirstReport, limit / 3)) {}
  bool isDue() {
    const Clock::time_point now = Clock::now();
    if (now < next_) return false;
    next_ = now + kNextReport;
    return true;
  }

 private:
  Clock::time_point next_;
};

struct Hello {
  uint64_t protocol = 0, size = 0, rank = 0;
  std::string job, host;
  std::string nonce;  // empty without a secret
};

std::string pack(const Hello& hello) {
  return Packer()
      .number(hello.protocol)
      .number(hello.size)
      .number(hello.rank)
      .string(hello.job.substr(0, kMaxText))
      .string(hello.host.substr(0, kMaxText))
      .string(hello.nonce)
      .bytes();
}

bool unpack(const Frame& frame, Hello& hello) {
  Unpacker unpacker(frame.bytes);
  hello.protocol = unpacker.number();
  hello.size = unpacker.number();
  hello.rank = unpacker.number();
  hello.job = unpacker.string();
  hello.host = unpacker.string();
  hello.nonce = unpacker.string();
  return frame.type == FrameType::kHello && unpacker.complete();
}

// Empty if the frame is not a hello. Hellos of all versions begin with it.
std::optional<uint64_t> protocolOf(const Frame& frame) {
  Unpacker unpacker(frame.bytes);
  const uint64_t protocol = unpacker.number();
  if (frame.type != FrameType::kHello || !unpacker.ok()) return std::nullopt;
  return protocol;
}

class Coordinator {
 public:
  // `secret`: null without one.
  Coordinator(const Launch& launch, const Secret* secret, const std::function<bool()>& cancelled, const Report& waits)
      : launch_(launch),
        secret_(secret),
        cancelled_(cancelled),
        waits_(waits),
        joined_(static_cast<size_t>(launch.size - 1)),
        hosts_(joined_.size()),
        handshakes_(joined_.size()) {}

  Expected<Joined> run() {
    Expected<Socket> listener = listenOn(launch_.rendezvous);
    if (!listener.ok())
      return Status::error(
          cat("process 0: ", listener.status().message(), "; SHEAF_RENDEZVOUS=host:port names another"));
    Acceptor<Unknown> acceptor(std::move(*listener), {kMaxPending, kHelloTime});
    auto deadline = Clock::now() + launch_.limit;
    ReportTimes times(launch_.limit);
    while (missing() > 0) {
      if (cancelled_ && cancelled_()) return end(gaveUp());
      if (waits_ && times.isDue()) waits_(cat("waiting for other processes: ", whoIsMissing()));
      if (Clock::now() >= deadline) return end(tooLate(acceptor.others()));
      std::vector<int> others;
      for (const auto& one : joined_)
        if (one) others.push_back(one->socket().descriptor());
      acceptor.wait(kLook, others);
      if (Status status = acceptor.serve([&](Unknown& one) { return greet(one); }); !status.ok())
        return end(Status::error(cat("process 0: ", status.message())));
      if (Status status = checkJoined(); !status.ok()) return end(status);
    }
    return welcome();
  }

 private:
  struct Unknown {
    explicit Unknown(Socket socket) : connection(std::move(socket)) {}
    const Socket& socket() const { return connection.socket(); }

    Connection connection;
    Hello hello;
    std::string said, challenge;  // its hello, and our nonce, where there is a secret
  };

  size_t missing() const {
    return static_cast<size_t>(std::count_if(joined_.begin(), joined_.end(), [](auto& one) { return !one; }));
  }

  // What follows a message of a connection that has not joined: it has to prove that it knows the secret, is dropped
  // because it is not from sheaf-run, is refused with a reason, or joins.
  enum class Next { kProof, kDrop, kRefuse, kJoin };

  Heard greet(Unknown& one) {
    Expected<std::vector<Frame>> frames = one.connection.receive(kMaxGreetingBytes);
    if (!frames.ok() || one.connection.ended()) return Heard::kUnrelated;
    if (frames->empty()) return one.challenge.empty() ? Heard::kNothing : Heard::kPart;
    std::string why;
    Next next = Next::kDrop;
    if (frames->size() == 1)
      next = one.challenge.empty() ? hear(one, frames->front(), why) : prove(one, frames->front(), why);
    if (next == Next::kJoin) next = admit(one, why);
    if (next == Next::kProof) return Heard::kPart;
    if (next == Next::kJoin) return Heard::kMember;
    if (next == Next::kDrop) return Heard::kUnrelated;
    refused_ = cat("; one from ", peerAddress(one.socket()), " was refused: ", why);
    one.connection.send(FrameType::kRefusal, 0, why);
    (void)one.connection.flush();
    one.connection.finish();
    return Heard::kUnrelated;
  }

  Next hear(Unknown& one, const Frame& frame, std::string& why) {
    const std::optional<uint64_t> protocol = protocolOf(frame);
    if (!protocol) return Next::kDrop;
    if (*protocol != kProtocol) {
      why = cat("it uses version ", *protocol, " of the protocol, process 0 uses version ", kProtocol);
      return Next::kRefuse;
    }
    if (!unpack(frame, one.hello)) return Next::kDrop;
    if (one.hello.nonce.empty() != !secret_) {
      why = !secret_ ? "SHEAF_SECRET is set for it, but not for process 0"
                     : "SHEAF_SECRET is set for process 0, but not for it";
      return Next::kRefuse;
    }
    if (!secret_) return Next::kJoin;
    Expected<std::string> nonce = makeNonce();
    if (!nonce.ok()) {
      why = nonce.status().message();
      return Next::kRefuse;
    }
    one.said = frame.bytes;
    one.challenge = std::move(*nonce);
    one.connection.send(FrameType::kChallenge, 0, one.challenge);
    (void)one.connection.flush();
    return Next::kProof;
  }

  Next prove(Unknown& one, const Frame& frame, std::string& why) {
    if (frame.type == FrameType::kProof && secret_->equal(frame.bytes, secret_->joinProof(one.said, one.challenge)))
      return Next::kJoin;
    why = "its SHEAF_SECRET is not that of process 0";
    return Next::kRefuse;
  }

  // Takes a process that may join, unless it is not of this job or not one that is missing.
  Next admit(Unknown& one, std::string& why) {
    const Hello& hello = one.hello;
    if (hello.job != launch_.job.substr(0, kMaxText))
      why = cat("it is of job '", shownLine(hello.job), "', process 0 of job '", launch_.job, "'");
    else if (hello.size != static_cast<uint64_t>(launch_.size))
      why = cat("its job has ", hello.size, " processes, that of process 0 ", launch_.size);
    else if (hello.rank == 0 || hello.rank >= hello.size)
      why = cat("its rank ", hello.rank, " is not one of the job's");
    else if (joined_[hello.rank - 1])
      why = cat("process ", hello.rank, " has already joined from ", hosts_[hello.rank - 1]);
    if (!why.empty()) return Next::kRefuse;
    const size_t index = hello.rank - 1;
    hosts_[index] = shownLine(hello.host);
    handshakes_[index] = {std::move(one.said), std::move(one.challenge)};
    joined_[index] = std::move(one.connection);
    return Next::kJoin;
  }

  // Processes that have joined wait for the welcome. They can only disconnect.
  Status checkJoined() {
    for (size_t i = 0; i < joined_.size(); ++i) {
      if (!joined_[i]) continue;
      Expected<std::vector<Frame>> frames = joined_[i]->receive(kMaxGreetingBytes);
      if (!frames.ok() || joined_[i]->ended() || !frames->empty())
        return Status::error(cat("process ", i + 1, " (", hosts_[i], ") ended before the job began"));
    }
    return {};
  }

  std::string whoIsMissing() const {
    std::vector<std::string> names;
    for (size_t i = 0; i < joined_.size(); ++i)
      if (!joined_[i]) names.push_back(std::to_string(i + 1));
    return cat(launch_.size - static_cast<int64_t>(missing()), " of ", launch_.size, " processes have joined at ",
               text(launch_.rendezvous), "; missing: ", listText(names), refused_);
  }

  Status tooLate(const std::string& others) const {
    return Status::error(
        cat("after ", seconds(launch_.limit), " ", whoIsMissing(), others, " (SHEAF_TIMEOUT changes the limit)"));
  }

  // Processes that have joined must not wait for a job that does not begin.
  Status end(Status why) {
    for (auto& one : joined_) {
      if (!one) continue;
      one->send(FrameType::kFailure, 0, why.message());
      (void)one->flush();
      one->finish();
    }
    return why;
  }

  // Processes connected by the loopback address are on this host. Others reach them at the address by which remote
  // processes have reached this one.
  Expected<Joined> welcome() {
    std::string ours = "127.0.0.1";
    for (const auto& one : joined_)
      if (!isLoopback(peerAddress(one->socket()))) ours = localAddress(one->socket());
    Joined result;
    result.members.push_back({hostName(), ours});
    for (size_t i = 0; i < joined_.size(); ++i) {
      std::string address = peerAddress(joined_[i]->socket());
      result.members.push_back({hosts_[i], isLoopback(address) ? ours : address});
    }
    Packer packer;
    for (const Member& member : result.members) packer.string(member.host).string(member.address);
    for (size_t i = 0; i < joined_.size(); ++i) {
      const auto& [said, challenge] = handshakes_[i];
      Expected<std::string> proof = secret_ ? secret_->welcomeProof(said, challenge, packer.bytes()) : std::string();
      if (!proof.ok()) return end(proof.status());
      joined_[i]->send(FrameType::kWelcome, 0, Packer().string(packer.bytes()).string(*proof).bytes());
    }
    for (auto& one : joined_) result.connections.push_back(std::move(*one));
    return result;
  }

  const Launch& launch_;
  const Secret* const secret_;
  const std::function<bool()>& cancelled_;
  const Report& waits_;
  std::vector<std::optional<Connection>> joined_;  // of process 1 on
  std::vector<std::string> hosts_;
  std::vector<std::pair<std::string, std::string>> handshakes_;  // each one's hello and challenge
  std::string refused_;
};

// One attempt to join process 0. Empty if process 0 does not listen yet.
Expected<std::optional<Joined>> tryJoin(const Launch& launch, const Secret* secret,
                                        const std::function<bool()>& cancelled, Clock::time_point deadline,
                                        std::string& why) {
  std::optional<Joined> none;
  Expected<Socket> socket = connectTo(launch.rendezvous, std::min(deadline, Clock::now() + kHelloTime), cancelled);
  if (!socket.ok()) {
    why = socket.status().message();
    return none;
  }
  Connection connection(std::move(*socket));
  std::string nonce, challenge;
  if (secret) {
    Expected<std::string> made = makeNonce();
    if (!made.ok()) return made.status();
    nonce = std::move(*made);
  }
  const std::string hello = pack({kProtocol, static_cast<uint64_t>(launch.size), static_cast<uint64_t>(launch.rank),
                                  launch.job, hostName(), nonce});
  connection.send(FrameType::kHello, 0, hello);
  why = cat("what listens on ", text(launch.rendezvous), " is not process 0 of this job");
  if (!connection.flush().ok()) return none;
  // The welcome names all processes.
  const uint64_t most = std::max(kMaxAnswerBytes, static_cast<uint64_t>(launch.size) * kMaxMemberBytes);
  while (Clock::now() < deadline) {
    if (cancelled && cancelled()) return gaveUp();
    pollfd wait{connection.socket().descriptor(), POLLIN, 0};
    poll(&wait, 1, static_cast<int>(kLook.count()));
    Expected<std::vector<Frame>> frames = connection.receive(most, 1);
    if (!frames.ok()) return Status::error(cat(why, ": ", frames.status().message()));
    if (frames->empty()) {
      if (connection.ended()) return none;
      continue;
    }
    const Frame& frame = frames->front();
    if (frame.type == FrameType::kRefusal)
      return Status::error(cat("process 0 refuses process ", launch.rank, ": ",
                               shownLine(std::string_view(frame.bytes).substr(0, 1000))));
    if (frame.type == FrameType::kFailure) return Status::error(frame.bytes.substr(0, kMaxGreetingBytes));
    if (frame.type == FrameType::kChallenge && secret && challenge.empty()) {
      challenge = frame.bytes;
      Expected<std::string> proof = secret->joinProof(hello, challenge);
      if (!proof.ok()) return proof.status();
      connection.send(FrameType::kProof, 0, *proof);
      if (!connection.flush().ok()) return none;
      continue;
    }
    Unpacker welcome(frame.bytes);
    const std::string members = welcome.string(), proof = welcome.string();
    if (frame.type != FrameType::kWelcome || !welcome.complete()) return Status::error(why);
    if (secret && (challenge.empty() || !secret->equal(proof, secret->welcomeProof(hello, challenge, members))))
      return Status::error(cat(why, ": it does not know SHEAF_SECRET"));
    Joined joined;
    Unpacker unpacker(members);
    for (int64_t i = 0; i < launch.size && unpacker.ok(); ++i) {
      std::string host = shownLine(unpacker.string());
      joined.members.push_back({std::move(host), unpacker.string()});
    }
    if (!unpacker.complete()) return Status::error(why);
    joined.connections.push_back(std::move(connection));
    return std::optional<Joined>(std::move(joined));
  }
  why = cat("process 0 at ", text(launch.rendezvous), " is still waiting for other processes");
  return none;
}

}  // namespace

Expected<Joined> joinJob(const Launch& launch, const std::function<bool()>& cancelled, const Report& waits) {
  if (launch.size == 1) return Joined{{}, {{hostName(), "127.0.0.1"}}};
  allowMostOpenFiles();  // a large job needs more than a shell grants
  std::optional<Secret> opened;
  if (!launch.secret.empty()) {
    Expected<Secret> secret = Secret::open(launch.secret);
    if (!secret.ok()) return secret.status();
    opened = std::move(*secret);
  }
  const Secret* secret = opened ? &*opened : nullptr;
  if (launch.rank == 0) return Coordinator(launch, secret, cancelled, waits).run();
  // Process 0 gives up first, because it can name the missing processes.
  auto deadline = Clock::now() + launch.limit + std::min<std::chrono::milliseconds>(launch.limit, kHelloTime);
  std::string why;
  ReportTimes times(launch.limit);
  while (Clock::now() < deadline) {
    if (cancelled && cancelled()) return gaveUp();
    Expected<std::optional<Joined>> joined = tryJoin(launch, secret, cancelled, deadline, why);
    if (!joined.ok()) return joined.status();
    if (*joined) return std::move(**joined);
    if (waits && times.isDue()) waits(cat("process ", launch.rank, " waits for process 0: ", why));
    std::this_thread::sleep_for(kLook);
  }
  return Status::error(cat("process ", launch.rank, " did not reach process 0 within ", seconds(launch.limit), ": ",
                           why, " (SHEAF_TIMEOUT changes the limit)"));
}

bool onSeveralHosts(const std::vector<Member>& members) {
  return std::any_of(members.begin(), members.end(),
                     [&](const Member& member) { return member.address != members.front().address; });
}

}  // namespace sheaf::comm
