/* Attributes of the activation functions, for their CPU and GPU forms. */
#ifndef SMELT_OP_ACTIVATION_H
#define SMELT_OP_ACTIVATION_H

#include "op/op.h"

typedef struct GeluAttributes { GeluKind kind; } GeluAttributes;
typedef struct ClampAttributes { double limit; } ClampAttributes;
typedef struct ScaleAttributes { double factor; } ScaleAttributes;

#endif
