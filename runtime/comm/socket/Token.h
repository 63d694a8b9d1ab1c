// A random number of 128 bits, by which the processes of a job recognise each other's connections.
#pragma once

#include <sys/random.h>

#include <cstdint>

#include "runtime/base/Status.h"
#include "runtime/base/Text.h"
#include "runtime/comm/socket/Socket.h"

namespace sheaf::comm {

struct Token {
  uint64_t words[2] = {};

  // From the kernel's random numbers.
  static Expected<Token> random() {
    Token token;
    if (getrandom(token.words, sizeof token.words, 0) != static_cast<ssize_t>(sizeof token.words))
      return Status::error(cat("no random numbers: ", systemError()));
    return token;
  }
  // Takes the same time wherever the numbers differ, so that its duration does not help to guess them.
  bool operator==(const Token& other) const { return ((words[0] ^ other.words[0]) | (words[1] ^ other.words[1])) == 0; }
};

}  // namespace sheaf::comm
