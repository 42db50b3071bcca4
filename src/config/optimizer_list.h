/* All optimizers, in the order of OptimizerName. Each line declares an OptimizerRule
 * optimizer_NAME, defined in src/optim/NAME.c. ELEMENTS: it updates each element by itself, with
 * CPU kernels KERNEL(update_NAME) in src/optim/NAME_cpu.c and GPU kernels gpu_update_NAME in
 * src/optim/NAME_gpu.c. MATRICES: it updates whole matrices, in passes of its own. */
OPTIMIZER(adamw, ELEMENTS)
OPTIMIZER(muon, MATRICES)
OPTIMIZER(lion, ELEMENTS)
OPTIMIZER(adamw_8bit, ELEMENTS)
