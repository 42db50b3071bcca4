/* The version of the program. It changes when results may have other bits, or files another form. A
 * run continues with another version only with resume.accept=version. */
#pragma once

#define SMELT_VERSION "0.9"
