// State in files gets a second place: a step reads the current generation, writes the next one, reads that from then on, and
// persists it. The prologue and the evaluation read the current one.
// RUN: sheaf-opt %s -plan-generations | FileCheck %s
// RUN: sheaf-opt %s -plan-generations="generations=1" | FileCheck %s --check-prefix=ONE
// RUN: sed 's/"p" parameters in file/"p" parameters in host/' %s | sheaf-opt -plan-generations | FileCheck %s --check-prefix=PART
// RUN: sheaf-opt %s -plan-generations -plan-insert-events -plan-elide-events | FileCheck %s --check-prefix=EVENTS

// ONE: decisions = ["files: a run cannot go on from them after a crash: --file-generations 1"]
// ONE-NOT: plan.generation
// ONE-NOT: plan.persist
// PART: decisions = ["files: a run cannot go on from them after a crash: they lack the parameters of bucket 'b' (in host memory)"]
// PART-NOT: plan.persist

// CHECK: communicator_axes = ["node", "world"]
// CHECK-SAME: communicators = 2
// CHECK-SAME: decisions = ["files: every step can be resumed; two generations of 8.0 KiB a rank"]
// CHECK: %p = plan.buffer "p" parameters in file offset 0 bytes 4096 persistent
// CHECK-NEXT: %p.next = plan.buffer "p.next" parameters in file offset 0 bytes 4096 persistent
// CHECK: %m.next = plan.buffer "m.next" optimizer in file offset 0 bytes 4096 persistent
// CHECK: %frozen = plan.buffer "frozen" parameters in file offset 0 bytes 4096 persistent
// CHECK-NOT: frozen.next
// CHECK: %votes = plan.buffer "votes" workspace offset 0 bytes 4 persistent
// CHECK-DAG: plan.generation %p next %p.next
// CHECK-DAG: plan.generation %m next %m.next
// CHECK: plan.prologue
// CHECK-NEXT: read_file(r %p[0 : 4096]
// CHECK: plan.body
// CHECK-NEXT: read_file(r %m[0 : 4096]
// CHECK-NEXT: "update"
// CHECK-NEXT: write_file(r %m.image[0 : 4096], w %m.next[0 : 4096])
// CHECK-NEXT: write_file(r %p.image[0 : 4096], w %p.next[0 : 4096])
// CHECK-NEXT: read_file(r %p.next[0 : 4096], w %p.image[0 : 4096])
// CHECK-NEXT: plan.persist communicator 1(w %votes[0 : 4], r %m[0 : 4096], r %m.next[0 : 4096], r %p[0 : 4096], r %p.next[0 : 4096]) stream 2 "persist"
// CHECK: plan.evaluation
// CHECK-NEXT: read_file(r %p[0 : 4096]

// The carried fetch waits for the store; nothing but the host waits for what is persisted.
// EVENTS: plan.body
// EVENTS: plan.transfer write_file(r %p.image
// EVENTS: plan.record [[STORED:[0-9]+]] stream 2
// EVENTS: plan.wait [[STORED]] stream 1
// EVENTS: plan.transfer read_file(r %p.next
// EVENTS: plan.persist
// EVENTS: plan.record [[PERSISTED:[0-9]+]] stream 2 "persist"
// EVENTS: plan.epilogue
// EVENTS: plan.wait [[PERSISTED]] stream 0 "persist"

plan.program attributes {ranks = 2 : i64, zero = 0 : i64, ranks_per_node = 2 : i64, communicators = 1 : i64, communicator_axes = ["node"],
    streams = ["compute", "file_in", "file_out"]} {
  %p = plan.buffer "p" parameters in file offset 0 bytes 4096 persistent
  %p.image = plan.buffer "p.image" parameters offset 0 bytes 4096
  %m = plan.buffer "m" optimizer in file offset 0 bytes 4096 persistent
  %m.image = plan.buffer "m.image" optimizer offset 0 bytes 4096
  %frozen = plan.buffer "frozen" parameters in file offset 0 bytes 4096 persistent
  %g = plan.buffer "g" gradients offset 0 bytes 4096
  plan.bucket "b" f32 elements 1024 parameters %p states(%m) ["m"] trainable
  plan.bucket "f" f32 elements 1024 parameters %frozen states() []
  plan.kernel "k" rows 1 block 1 bytes [4096, 4096, 4096]
  plan.prologue {
    plan.transfer read_file(r %p[0 : 4096], w %p.image[0 : 4096]) stream 1 "p"
  }
  plan.body {
    plan.transfer read_file(r %m[0 : 4096], w %m.image[0 : 4096]) stream 1 "m"
    plan.launch kernel 0 rows 1 block 1(rw %p.image[0 : 4096], r %g[0 : 4096], rw %m.image[0 : 4096]) stream 0 "update"
    plan.transfer write_file(r %m.image[0 : 4096], w %m[0 : 4096]) stream 2 "m"
    plan.transfer write_file(r %p.image[0 : 4096], w %p[0 : 4096]) stream 2 "p"
    plan.transfer read_file(r %p[0 : 4096], w %p.image[0 : 4096]) stream 1 "p"
  }
  plan.epilogue {
  }
  plan.evaluation {
    plan.transfer read_file(r %p[0 : 4096], w %p.image[0 : 4096]) stream 1 "p"
  }
}
