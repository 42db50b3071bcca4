/* activation: builders, and what the rule and the kernels of both back ends share. */
#pragma once

#include "graph/op.h"

/* GELU, COMPUTE: x * Phi(x), or GPT-2's form of it, 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). */
typedef enum GeluKind { GELU_EXACT, GELU_TANH } GeluKind;
TensorId op_gelu(Graph *graph, TensorId x, GeluKind kind);

/* x cut to -limit .. limit, COMPUTE; the gradient of what was cut is zero. */
TensorId op_clamp(Graph *graph, TensorId x, double limit);

/* factor * x, COMPUTE. */
TensorId op_scale(Graph *graph, TensorId x, double factor);

/* silu(x[:, :F]) * x[:, F:], COMPUTE [R, 2F] -> [R, F]. */
TensorId op_swiglu(Graph *graph, TensorId x);

typedef struct GeluAttributes { GeluKind kind; } GeluAttributes;
typedef struct ClampAttributes { double limit; } ClampAttributes;
typedef struct ScaleAttributes { double factor; } ScaleAttributes;
