/* All activation functions of MLPs, in the order of Activation. src/ops/activation/ compiles the
 * formulas for CPUs, in each precision and instruction set, and for GPUs. To add a function, add
 * its row here and its definition to tests/ops/test_activation.c.
 *
 * ACTIVATION(name, hf, value, slope): y = value and d_x = d_y * slope, as formulas of x.
 * GATED(name, hf, value, d_gate, d_up): y = value, a formula of the halves `gate` and `up` of a
 * row; and both gradients, formulas of gate, up and d = d_y. The formulas may read `alpha` and
 * `limit` of ActivationTerms.
 *
 * `hf` lists the spellings of the function in config.json of transformers, separated by spaces;
 * the first one is written. A function without a spelling is only for families whose default it is.
 * A formula has arithmetic, comparisons, NUMBER(constant), and the functions of
 * backend/gpu/formulas.h, which ops/activation/cpu.c defines for CPUs. */

/* GPT-2's approximation of GELU, 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), is x
 * sigmoid(x (A + B x^2)), because 0.5 (1 + tanh(u)) = sigmoid(2u). */
#define GELU_A NUMBER(1.59576912160573071176)
#define GELU_B NUMBER(1.59576912160573071176 * 0.044715)
#define GELU_TANH(x) over_sigmoid(x, (x) * (GELU_A + GELU_B * (x) * (x)))
#define GELU_TANH_SLOPE(x) over_sigmoid_slope(x, sigmoid((x) * (GELU_A + GELU_B * (x) * (x))), GELU_A + 3 * GELU_B * (x) * (x))

/* GELU (arXiv 1606.08415), SiLU, and ReLU^2 (arXiv 2109.08668). */
ACTIVATION(gelu, "gelu", normal_cumulative(x) * x, normal_slope(x))
ACTIVATION(gelu_tanh, "gelu_new gelu_pytorch_tanh gelu_fast", GELU_TANH(x), GELU_TANH_SLOPE(x))
ACTIVATION(silu, "silu swish", over_sigmoid(x, x), sigmoid(x) + x * sigmoid(x) * (1 - sigmoid(x)))
ACTIVATION(relu2, "relu2", x < 0 ? 0 : x * x, x < 0 ? 0 : 2 * x)

/* Gated linear units (arXiv 2002.05202): SwiGLU, and GeGLU with the approximation, as in Gemma. */
GATED(swiglu, "silu swish", over_sigmoid(gate, gate) * up, sigmoid(gate) * (d * up) * (1 + gate * (1 - sigmoid(gate))),
    sigmoid(gate) * (d * gate))
GATED(geglu_tanh, "gelu_pytorch_tanh gelu_new gelu_fast", GELU_TANH(gate) * up, GELU_TANH_SLOPE(gate) * (d * up), GELU_TANH(gate) * d)

/* SwiGLU of gpt-oss: the gate is at most `limit`, the up projection within -limit .. limit, and one
 * is added to it. Values outside have no gradient. */
#define AT_MOST_LIMIT(x) ((x) > limit ? limit : (x))
#define WITHIN_LIMIT(x) ((x) < -limit ? -limit : AT_MOST_LIMIT(x))
GATED(swiglu_clamped, "", over_sigmoid(AT_MOST_LIMIT(gate), alpha *AT_MOST_LIMIT(gate)) * (WITHIN_LIMIT(up) + 1),
    gate > limit ? 0 : over_sigmoid_slope(gate, sigmoid(alpha *gate), alpha) * (d * (WITHIN_LIMIT(up) + 1)),
    up > limit || up < -limit ? 0 : over_sigmoid(AT_MOST_LIMIT(gate), alpha *AT_MOST_LIMIT(gate)) * d)
