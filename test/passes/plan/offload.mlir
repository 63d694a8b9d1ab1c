// State gets its home in another space, and each use an image between two transfers. Values move between uses that are far
// from each other, if they are written whole; what is near shares an image.
// RUN: sheaf-opt %s -plan-offload="optimizer=host profile=cpu" | FileCheck %s --check-prefix=STATE
// RUN: sheaf-opt %s -plan-offload="optimizer=file parameters=host profile=cpu" | FileCheck %s --check-prefix=FILE
// RUN: sheaf-opt %s -plan-offload="activations=host profile=cpu" | FileCheck %s --check-prefix=VALUES
// RUN: sheaf-opt %s -plan-offload="profile=cpu" | FileCheck %s --check-prefix=NONE
// RUN: sheaf-opt %s -plan-offload="within=67371008 profile=cpu" | FileCheck %s --check-prefix=WITHIN
// RUN: sheaf-opt %s -plan-offload="within=67371008 host-bytes=0 profile=cpu" | FileCheck %s --check-prefix=FULL
// RUN: sheaf-opt %s -plan-offload="optimizer=host update-on=host profile=cpu" | FileCheck %s --check-prefix=ONHOST
// RUN: sheaf-opt %s -plan-offload="optimizer=file parameters=host gradients=host update-on=host profile=cpu" | FileCheck %s --check-prefix=HOSTFILE
// RUN: sheaf-opt %s -plan-offload="parameters=host update-on=host profile=cpu" | FileCheck %s --check-prefix=NOSTATE
// RUN: not sheaf-opt %s -plan-offload="update-on=gpu" 2>&1 | FileCheck %s --check-prefix=WHERE
// RUN: not sheaf-opt %s -plan-offload="optimizer=disk" 2>&1 | FileCheck %s --check-prefix=BAD

// An update on the host finds the state there: nothing moves it.
// ONHOST: streams = ["compute", "host_compute"]
// ONHOST-NOT: "m.image"
// ONHOST: plan.body
// ONHOST-NOT: plan.transfer
// ONHOST: plan.launch kernel 0 on host rows 1 block 1(rw %p[0 : 65536], r %g[0 : 65536], rw %m[0 : 65536]) stream 1 "update"
// ONHOST-NOT: plan.transfer

// From files it is read into the host's memory. Parameters and gradients that lie there are used where they are.
// HOSTFILE: "m" optimizer in file offset 0 bytes 65536 persistent
// HOSTFILE-NEXT: "m.image" optimizer in host offset 0 bytes 65536{{$}}
// HOSTFILE: plan.transfer to_host(r %g[0 : 65536], w %g.host[0 : 65536])
// HOSTFILE: plan.transfer read_file(r %m[0 : 65536], w %m.image[0 : 65536])
// HOSTFILE-NEXT: plan.launch kernel 0 on host {{.*}}(rw %p[0 : 65536], r %g.host[0 : 65536], rw %m.image[0 : 65536])
// HOSTFILE-NEXT: plan.transfer write_file(r %m.image[0 : 65536], w %m[0 : 65536])
// HOSTFILE-NOT: plan.transfer

// NOSTATE-NOT: on host
// WHERE: error: updates are made on one of: device, host
// BAD: error: a kind can lie in one of these spaces: device, host, file
// NONE-NOT: transfer
// NONE: streams = ["compute"]
// NONE-NOT: transfer

// STATE: streams = ["compute", "to_device", "to_host"]
// STATE: %m = plan.buffer "m" optimizer in host offset 0 bytes 65536 persistent
// STATE-NEXT: %m.image = plan.buffer "m.image" optimizer offset 0 bytes 65536{{$}}
// STATE: plan.bucket "b" {{.*}} states(%m) ["m"]
// STATE: plan.body
// STATE-NOT: plan.transfer
// STATE: plan.transfer to_device(r %m[0 : 65536], w %m.image[0 : 65536]) stream 1 "m"
// STATE-NEXT: plan.launch kernel 0 {{.*}}rw %m.image[0 : 65536]{{.*}} "update"
// STATE-NEXT: plan.transfer to_host(r %m.image[0 : 65536], w %m[0 : 65536]) stream 2 "m"
// STATE-NOT: plan.transfer

// The parameters are read by the first product and the last one, with computation between, and then updated.
// FILE: streams = ["compute", "file_in", "file_out", "to_device", "to_host"]
// FILE-DAG: "p" parameters in host offset 0 bytes 65536 persistent
// FILE-DAG: "m" optimizer in file offset 0 bytes 65536 persistent
// FILE: plan.transfer to_device(r %p[0 : 65536], w [[FIRST:%p.image[0-9a-z_.]*]][0 : 65536])
// FILE-NEXT: "forward"
// FILE-NOT: plan.transfer to_host
// FILE: plan.transfer to_device(r %p[0 : 65536], w [[SECOND:%p.image[0-9a-z_.]*]][0 : 65536])
// FILE-NEXT: "backward"
// FILE: plan.transfer read_file(r %m[0 : 65536], w %m.image[0 : 65536]) stream 1 "m"
// FILE: rw [[SECOND]][0 : 65536], {{.*}}rw %m.image[0 : 65536]{{.*}} "update"
// FILE-DAG: plan.transfer to_host(r [[SECOND]][0 : 65536], w %p[0 : 65536])
// FILE-DAG: plan.transfer write_file(r %m.image[0 : 65536], w %m[0 : 65536]) stream 2 "m"

// Of the values, `x` is written whole and used far away; `half` is written in part.
// VALUES: "x" activations offset 0 bytes 65536
// VALUES: "x.host" activations in host offset 0 bytes 65536{{$}}
// VALUES-NOT: "half.host"
// VALUES: plan.body
// VALUES: "forward"
// VALUES-NEXT: plan.transfer to_host(r %x[0 : 65536], w %x.host[0 : 65536])
// VALUES: plan.transfer to_device(r %x.host[0 : 65536], w %x.image[0 : 65536])
// VALUES-NEXT: r %x.image[0 : 65536]{{.*}} "backward"
// VALUES-NOT: plan.transfer

// While `big` is alive there are 67,436,544 bytes: one buffer of 65,536 has to go. `x` and the state `m` would cost as much, one
// transfer each way; `half` cannot, and the first of those that cost least goes.
// WITHIN: "x.host" activations in host
// WITHIN-NOT: in host
// WITHIN: plan.body
// WITHIN: plan.transfer to_host(r %x[0 : 65536], w %x.host[0 : 65536])
// WITHIN-NEXT: "long"
// WITHIN-NEXT: plan.transfer to_device(r %x.host[0 : 65536], w %x.image[0 : 65536])
// WITHIN-NEXT: "backward"
// WITHIN-NOT: plan.transfer

// FULL: in file
// FULL-NOT: in host

plan.program attributes {ranks = 1 : i64, zero = 0 : i64, streams = ["compute"]} {
  %p = plan.buffer "p" parameters offset 0 bytes 65536 persistent
  %m = plan.buffer "m" optimizer offset 0 bytes 65536 persistent
  %x = plan.buffer "x" activations offset 0 bytes 65536
  %half = plan.buffer "half" activations offset 0 bytes 65536
  %y = plan.buffer "y" activations offset 0 bytes 65536
  %big = plan.buffer "big" activations offset 0 bytes 67108864
  %g = plan.buffer "g" gradients offset 0 bytes 65536
  plan.bucket "b" f32 elements 16384 parameters %p states(%m) ["m"] trainable
  plan.kernel "k" rows 1 block 1 bytes [65536, 65536, 65536]
  plan.prologue {
  }
  plan.body {
    plan.call "zero" {} (w %x[0 : 65536]) stream 0 "input"
    plan.call "zero" {} (w %half[0 : 32768]) stream 0 "part"
    plan.call "gemm" {m = 128 : i64, n = 128 : i64, k = 128 : i64, batch = 1 : i64, lda = 128 : i64, ldb = 128 : i64, ldc = 128 : i64} (r %x[0 : 65536], r %p[0 : 65536], w %y[0 : 65536]) stream 0 "forward"
    plan.call "zero" {} (w %big[0 : 67108864]) stream 0 "long"
    plan.call "gemm" {m = 128 : i64, n = 128 : i64, k = 128 : i64, batch = 1 : i64, lda = 128 : i64, ldb = 128 : i64, ldc = 128 : i64} (r %x[0 : 65536], r %p[0 : 65536], w %g[0 : 65536]) stream 0 "backward"
    plan.call "zero" {} (r %half[0 : 32768], w %y[0 : 65536]) stream 0 "end"
    plan.launch kernel 0 rows 1 block 1 (rw %p[0 : 65536], r %g[0 : 65536], rw %m[0 : 65536]) stream 0 "update" {updates_bucket = 1 : i64}
  }
  plan.epilogue {
  }
}
