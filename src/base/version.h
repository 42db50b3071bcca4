/* The version of the program. It is raised when results may have other bits, or files another form, than before: a run
 * goes on with another version only when resume.accept=version says so. */
#pragma once

#define SMELT_VERSION "0.9"
