/* `smelt eval MODEL QUESTIONS.jsonl`: questions of multiple choice as JSON lines. */
#pragma once

#include "app/inference.h"

typedef struct QuestionOptions {
    int64_t shots; /* questions at the start of the file that precede each other one, with their answers */
    int64_t most;  /* questions to score; 0: all */
    bool json;     /* print a JSON line for each question, and one for the sums */
    int64_t threads;
    int device, precision;
} QuestionOptions;

/* Returns whether the file's first line is a question: an object with `choices`. */
bool questions_is_file(const char *path);
/* Scores the choices of every question with the model of `folder`, and prints how often the likeliest
 * one is the answer. */
bool eval_questions(
    Inference *inference, const char *folder, const char *path, Config *config, const QuestionOptions *options, Error *error);
