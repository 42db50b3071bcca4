/* Shared by the files that open the data of a run. */
#pragma once

#include "run/corpus.h"

/* Like corpus_open, for an image model: data.train and data.valid are encodings. Always call
 * corpus_close. */
bool image_corpus_open(Corpus *corpus, const Config *config, Error *error);
