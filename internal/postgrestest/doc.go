// Package postgrestest gives tests a real PostgreSQL. A test that asks for one runs or fails: it never skips.
//
// Where BELAY_TEST_POSTGRES holds a URL, databases are made on that server. Otherwise a test process that asks starts one
// private cluster from the newest installed binaries, in a temporary directory, on a unix socket and on a loopback port
// that the system chose. As root it runs under another user, and where there are
// no binaries but apt-get, they are installed. The cluster ends with the test process, whatever way that ends: a shell
// between them stops it and removes its directory when the pipe that only the test process holds is closed.
package postgrestest
