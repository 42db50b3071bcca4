/* Sizing rules: whether the dimensions of a model suit a processor, and the cost if they do not.
 * The rules are those of arXiv 2401.14489 and of the ZAYA1 paper (arXiv 2511.17127). The costs come
 * from the program that would train, with tile and wave quantization of each of its GEMMs
 * (gemm_fit.h). */
#pragma once

#include <stdio.h>

#include "config/config.h"
#include "advise/measured.h"
#include "advise/work.h"

/* A note is information, not a fault of the model's dimensions. */
typedef enum Verdict { VERDICT_OK, VERDICT_NOTE, VERDICT_FAULT } Verdict;

typedef struct Finding {
    Verdict verdict;
    const char *dimension; /* "model.vocabulary" */
    int64_t value;
    char text[256]; /* the rule's requirement, and the consequence */
    double cost;    /* fraction of a step's time that the fix saves for the same number of tokens; 0: unknown or none */
} Finding;

enum { SIZE_FINDINGS = 24 };

/* The subject of a judgment. */
typedef struct SizeQuestion {
    const Config *config; /* checked */
    Hardware hardware;
    const Measured *measured; /* NULL: the rules alone */
    int64_t tensor;           /* GPUs that share each matrix */
} SizeQuestion;

typedef struct Sizing {
    Finding findings[SIZE_FINDINGS];
    int count, faults;
} Sizing;
void size_check(Sizing *sizing, const SizeQuestion *question);

/* Estimates the time of one microbatch per token, and the parameters, for any model, from programs
 * of two and three layers (all later layers are alike). */
typedef struct SizeEstimate { double seconds, parameters, active; } SizeEstimate;
SizeEstimate size_estimate(const SizeQuestion *question, const ModelConfig *model);

/* Gives the model heads of `head_dim` columns, about `queries` columns in total, with the same number
 * of queries per key as before. Heads of latent attention are not changed. */
void size_set_heads(ModelConfig *model, int64_t head_dim, int64_t queries);

/* Finds models without faults that have the same number of parameters within 1%, fastest first.
 * They are faster than this model, unless it has faults itself. The one with the fewest changes is
 * among them (neighbors.c). */
typedef struct Neighbor {
    ModelConfig model;
    SizeEstimate estimate;
    int changes;
} Neighbor;
enum { SIZE_NEIGHBORS = 5 };
int size_neighbors(const SizeQuestion *question, Neighbor neighbors[SIZE_NEIGHBORS]);

/* Experts of other widths with the same number of parameters (experts.c): training time per token
 * against decoding time. */
typedef struct ExpertChoice {
    int64_t experts, width, chosen;
    double tokens;     /* rows of one expert's GEMMs in a microbatch */
    double efficiency; /* of the first GEMMs of all experts together */
    double training;   /* tokens/s */
    double decode[2];  /* seconds of a decoding step for 1 and 32 sequences, from the bytes of weights that it reads */
    double active;     /* parameters per token */
} ExpertChoice;
enum { SIZE_EXPERT_CHOICES = 6 };
int size_experts(const SizeQuestion *question, ExpertChoice choices[SIZE_EXPERT_CHOICES]);

/* Prints findings, then GEMMs, neighbors and experts. */
void size_print(const Sizing *sizing, const SizeQuestion *question, FILE *file);
