// Steps check what they take for granted of a plan that was written by hand.
// RUN: not sheaf-opt %s -split-input-file -plan-digest-dataflow 2>&1 | FileCheck %s
// CHECK: ranks 0 is not between 1 and 65536
plan.program {
}

// -----

// CHECK: ranks_per_node 3 does not divide the 4 ranks
plan.program attributes {ranks = 4, ranks_per_node = 3, network_zero = 0, communicator_axes = []} {
}

// -----

// CHECK: a turn's part index 9 is out of range: the plan has 1
plan.program attributes {ranks = 1, micro_batches = 2, dealing = "by_micro_batch", turns = array<i64: 9, 0>} {
  plan.part "p" {}
}

// -----

// CHECK: body instruction 1: its input index 7 is out of range: the plan has 0
plan.program attributes {ranks = 1} {
  %x = plan.buffer "x" activations offset 0 bytes 64
  plan.body {
    plan.read_scalars(w %x[0 : 64]) stream 0 "scalars"
    plan.read_input 7(w %x[0 : 64]) stream 0 "x"
  }
}

// -----

// CHECK: evaluation instruction 0: its kernel index 0 is out of range: the plan has 0
plan.program attributes {ranks = 1} {
  plan.evaluation {
    plan.launch kernel 0 rows 4 block 2() stream 0 "mul"
  }
}

// -----

// CHECK: body instruction 0: its event index 1000000000 is out of range: the plan has 4194304
plan.program attributes {ranks = 1} {
  plan.body {
    plan.record 1000000000 stream 0 ""
  }
}

// -----

// CHECK: body instruction 0: its stream index 64 is out of range: the plan has 64
plan.program attributes {ranks = 1} {
  plan.body {
    plan.record 0 stream 64 ""
  }
}

// -----

// CHECK: prologue instruction 0: an operand lies outside of the 64 bytes of buffer 'x': 64 bytes at 0 + rank * 32
plan.program attributes {ranks = 2} {
  %x = plan.buffer "x" activations offset 0 bytes 64
  plan.prologue {
    plan.read_scalars(w %x[0 : 64 + rank * 32]) stream 0 "scalars"
  }
}

// -----

// CHECK: body instruction 0: an operand lies outside of the 64 bytes of buffer 'x': 1 bytes at 9223372036854775807
plan.program attributes {ranks = 1} {
  %x = plan.buffer "x" activations offset 0 bytes 64
  plan.body {
    plan.read_scalars(w %x[9223372036854775807 : 1]) stream 0 "scalars"
  }
}
