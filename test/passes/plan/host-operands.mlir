// Launches on the host get images of device buffers: their inputs are copied as soon as they have been written, once for all
// launches that only read them, and their outputs are copied back.
// RUN: sheaf-opt %s -plan-host-operands | FileCheck %s

// CHECK: streams = ["compute", "host_compute", "to_host", "to_device"]
// CHECK-DAG: "g" gradients offset 0 bytes 2048{{$}}
// CHECK-DAG: "g.host" gradients in host offset 0 bytes 2048{{$}}
// CHECK-DAG: "p.host" parameters in host offset 0 bytes 1024{{$}}
// CHECK-DAG: "q.host" parameters in host offset 0 bytes 1024{{$}}
// CHECK-DAG: "s.host" activations in host offset 0 bytes 128{{$}}
// CHECK-DAG: "s.host.1" activations in host offset 0 bytes 128{{$}}

// CHECK: plan.body
// CHECK-NEXT: "scalars"
// CHECK-NEXT: plan.transfer to_host(r %s[0 : 8], w %s.host[0 : 8]) stream 2
// CHECK-NEXT: "gradient"
// A rank's part alone is moved.
// CHECK-NEXT: plan.transfer to_host(r %g[0 : 1024 + rank * 1024], w %g.host[0 : 1024 + rank * 1024]) stream 2
// CHECK-NEXT: "norm"
// CHECK-NEXT: plan.transfer to_host(r %p[0 : 1024], w %p.host[0 : 1024]) stream 2
// CHECK-NEXT: plan.launch kernel 0 on host {{.*}}(rw %p.host[0 : 1024], r %g.host[0 : 1024 + rank * 1024], rw %m[0 : 1024], r %s.host[0 : 4], r %s.host[4 : 4]) stream 1 "update p"
// CHECK-NEXT: plan.transfer to_device(r %p.host[0 : 1024], w %p[0 : 1024]) stream 3
// What is only written is not copied there.
// CHECK-NEXT: plan.launch kernel 1 on host {{.*}}(w %q.host[0 : 1024], rw %n[0 : 1024], r %s.host[0 : 4], r %s.host[4 : 4]) stream 1 "update q"
// CHECK-NEXT: plan.transfer to_device(r %q.host[0 : 1024], w %q[0 : 1024]) stream 3
// The scalars have changed since.
// CHECK-NEXT: "others"
// CHECK-NEXT: plan.transfer to_host(r %s[0 : 8], w %s.host.1[0 : 8]) stream 2
// CHECK-NEXT: plan.launch kernel 1 on host {{.*}}(w %o[0 : 1024], rw %n[0 : 1024], r %s.host.1[0 : 4], r %s.host.1[4 : 4]) stream 1 "update o"
// CHECK-NEXT: plan.launch kernel 1 rows
// CHECK-NOT: plan.transfer

plan.program attributes {ranks = 2 : i64, zero = 1 : i64, streams = ["compute", "host_compute"]} {
  %p = plan.buffer "p" parameters offset 0 bytes 1024 persistent
  %q = plan.buffer "q" parameters offset 0 bytes 1024 persistent
  %o = plan.buffer "o" parameters in host offset 0 bytes 1024 persistent
  %m = plan.buffer "m" optimizer in host offset 0 bytes 1024 persistent
  %n = plan.buffer "n" optimizer in host offset 0 bytes 1024 persistent
  %g = plan.buffer "g" gradients offset 0 bytes 2048
  %s = plan.buffer "s" activations offset 0 bytes 128
  %y = plan.buffer "y" activations offset 0 bytes 1024
  plan.prologue {
  }
  plan.kernel "kernel0" rows 1 block 1 bytes []
  plan.kernel "kernel1" rows 1 block 1 bytes []
  plan.body {
    plan.read_scalars (w %s[0 : 4]) stream 0 "scalars"
    plan.call "zero" {} (w %g[0 : 2048]) stream 0 "gradient"
    plan.call "zero" {} (w %y[0 : 1024], r %g[0 : 2048]) stream 0 "norm"
    plan.launch kernel 0 on host rows 1 block 1 (rw %p[0 : 1024], r %g[0 : 1024 + rank * 1024], rw %m[0 : 1024], r %s[0 : 4], r %s[4 : 4]) stream 1 "update p"
    plan.launch kernel 1 on host rows 1 block 1 (w %q[0 : 1024], rw %n[0 : 1024], r %s[0 : 4], r %s[4 : 4]) stream 1 "update q"
    plan.read_scalars (w %s[0 : 4]) stream 0 "others"
    plan.launch kernel 1 on host rows 1 block 1 (w %o[0 : 1024], rw %n[0 : 1024], r %s[0 : 4], r %s[4 : 4]) stream 1 "update o"
    plan.launch kernel 1 rows 1 block 1 (w %y[0 : 1024], r %p[0 : 1024], r %s[0 : 4]) stream 0 "next"
  }
  plan.epilogue {
  }
}
