/* The secret of a job, known only to its processes; they use it to authenticate each other over the
 * network (channel.h). Keys and proofs are HMAC-SHA256 from OpenSSL's libcrypto; random bytes come
 * from the kernel. The secret travels in the environment, which only the user's processes can read.
 * It is never in a message, a log or a command line. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { SECRET_BYTES = 32 };
typedef struct Secret { uint8_t bytes[SECRET_BYTES]; } Secret;

/* Fills `bytes` with cryptographically random bytes. ERROR_INTERNAL. */
bool secret_random(void *bytes, size_t count, Error *error);

/* Returns the HMAC-SHA256 of the data. It serves as a proof that its sender has the secret, or as a
 * derived secret for one purpose. A derived secret does not reveal the original. */
Secret secret_sign(const Secret *secret, const void *data, size_t bytes);
/* Compares in constant time. */
bool secret_equal(const Secret *a, const Secret *b);

/* Reads the secret from the environment: the text of SMELT_SECRET, or of the file named by
 * SMELT_SECRET_FILE, which only its owner may read. `who` ("4 ranks") appears in messages as the
 * user of the secret. ERROR_USAGE. */
bool secret_find(const char *who, Secret *secret, Error *error);
/* Returns "SMELT_SECRET=...", from which secret_find in each child process makes the same secret.
 * The caller frees it. */
char *secret_variable(const Secret *secret);
