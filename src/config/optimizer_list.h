/* All optimizers, in the order of OptimizerName. A line stands for an OptimizerRule optimizer_NAME, in src/optim/NAME.c. ELEMENTS:
 * it updates each element by itself, so that there are CPU kernels, KERNEL(update_NAME) in src/optim/NAME_cpu.c, and GPU kernels,
 * gpu_update_NAME in src/optim/NAME_gpu.c. MATRICES: it updates whole matrices, in passes of its own. */
OPTIMIZER(adamw, ELEMENTS)
OPTIMIZER(muon, MATRICES)
OPTIMIZER(lion, ELEMENTS)
