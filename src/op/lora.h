/* Attributes of the adapters' operation, for its CPU and GPU forms. */
#ifndef SMELT_OP_LORA_H
#define SMELT_OP_LORA_H

#include "op/op.h"

typedef struct LoraAttributes { int parts; int64_t columns[LORA_PARTS]; } LoraAttributes; /* of y, part by part */

#endif
