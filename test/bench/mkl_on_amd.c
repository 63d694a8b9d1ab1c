// Lets PyTorch's MKL use AVX-512 on AMD processors. MKL asks these two functions of its own whether it runs on an Intel
// processor, and takes its AVX2 kernels otherwise, at half the speed where the processor has AVX-512. Preloaded, these
// definitions come before MKL's and say yes; MKL still looks at the processor's feature bits, so that it uses nothing
// that is not there. bench.py compiles this file and preloads it to measure PyTorch at its best.
//
//   cc -shared -fPIC -o mkl_on_amd.so mkl_on_amd.c
//   LD_PRELOAD=./mkl_on_amd.so python train.py
int mkl_serv_intel_cpu(void) { return 1; }
int mkl_serv_intel_cpu_true(void) { return 1; }
