/* Multiple-choice questions in llm.c's evaluation files (HellaSwag, MMLU): a header of 256 int32 (number, version,
 * examples), then every example as uint16: 65535, bytes of the example, index, label, endings, tokens of the context
 * and the context, and for each ending its tokens and the ending. */
#pragma once

#include "program/program.h"

enum { CHOICE_ENDINGS = 16 }; /* maximum per example; HellaSwag has 4 */

typedef struct ChoiceText {
    const uint16_t *tokens;
    int64_t count;
} ChoiceText; /* at least one token */

typedef struct ChoiceExample {
    ChoiceText context, ending[CHOICE_ENDINGS];
    int endings, label; /* number of endings, at least 2; index of the correct one */
} ChoiceExample;

/* Invariant: every example has 2 to CHOICE_ENDINGS endings, and its label is the index of one of them. */
typedef struct MultipleChoice {
    ChoiceExample *examples;
    int64_t count, longest; /* longest: maximum tokens of a context with one of its endings */
    int32_t max_token;
    char *content; /* of the file */
} MultipleChoice;

/* Returns whether `path` is a file that begins with the format's number. */
bool multiple_choice_is_file(const char *path);
/* Reads the file and checks every example. ERROR_DATA names the example and its fault. */
bool multiple_choice_open(MultipleChoice *set, const char *path, Error *error);
void multiple_choice_close(MultipleChoice *set); /* a zeroed or failed one is fine */

typedef struct ChoiceScore {
    double loss[CHOICE_ENDINGS]; /* -log likelihood of an ending given its context, in nats */
    int chosen, chosen_mean;     /* the first ending with the lowest loss, and with the lowest loss per token */
} ChoiceScore;

/* Scores the first `count` examples. `comm` has the ranks of the model's mesh. Groups of ranks
 * divide the examples, and all ranks get all scores. `program` is a MODEL_EVALUATE program of one
 * sequence of at least set->longest - 1 tokens, with its weights set; tokens must be below its
 * vocabulary. ERROR_NUMERICS if a loss is not finite. */
bool multiple_choice_evaluate(
    const Program *program, Comm *comm, const MultipleChoice *set, int64_t count, ChoiceScore *scores, Error *error);
