/* The secret of a job: what its processes know and nobody else does, so that they recognise each other over the
 * network (channel.h). Keys and proofs are HMAC-SHA256 of OpenSSL's libcrypto, random bytes come from the kernel.
 * The secret travels in the environment, which only the user's processes can read; no message, log or command line
 * has it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { SECRET_BYTES = 32 };
typedef struct Secret { uint8_t bytes[SECRET_BYTES]; } Secret;

/* Bytes that nobody can guess. ERROR_INTERNAL. */
bool secret_random(void *bytes, size_t count, Error *error);

/* HMAC-SHA256 of the data: the proof that its sender has the secret, or a secret for one purpose that does not tell
 * the one that it comes from. */
Secret secret_sign(const Secret *secret, const void *data, size_t bytes);
/* In a time that does not depend on the bytes. */
bool secret_equal(const Secret *a, const Secret *b);

/* The secret that the environment has: the text of SMELT_SECRET, or of the file that SMELT_SECRET_FILE names, which
 * nobody but its owner may read. `who` ("4 ranks") needs it, in messages. ERROR_USAGE. */
bool secret_find(const char *who, Secret *secret, Error *error);
/* "SMELT_SECRET=...", from which a child's secret_find makes the same secret as those of all others that get this
 * text. The caller frees. */
char *secret_variable(const Secret *secret);
