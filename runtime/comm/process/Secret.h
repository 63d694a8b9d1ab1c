// Proofs that both sides of the rendezvous know the job's secret, by HMAC-SHA-256. Each proof covers a nonce of either
// side and everything that was said, so one that was recorded is of no use in another handshake.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/Status.h"

namespace sheaf::comm {

inline constexpr size_t kMinSecretBytes = 16;

// 32 random bytes of the kernel.
Expected<std::string> makeNonce();

// That a process may join; `hello` is its first message, which has its nonce, `challenge` the nonce of process 0.
std::string joinProof(std::string_view secret, std::string_view hello, std::string_view challenge);
// That the answer comes from process 0; `members` is what it says.
std::string welcomeProof(std::string_view secret, std::string_view hello, std::string_view challenge,
                         std::string_view members);

}  // namespace sheaf::comm
