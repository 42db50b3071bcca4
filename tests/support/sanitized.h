/* Which sanitizer this program was compiled with: some take memory and addresses beside those that a test bounds. */
#pragma once

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#else
#define SANITIZED 0
#endif
