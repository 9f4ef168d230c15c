package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const poolerPort = "6432" // of the socket's name only

// Pooler is a PgBouncer in transaction mode in front of a cluster.
type Pooler struct {
	dir   string
	alive io.WriteCloser
}

// poolerKeeper runs the pooler until its own input ends, then removes the directory.
const poolerKeeper = `
trap '' INT TERM HUP
"$1" -q "$2/pgbouncer.ini" &
cat > /dev/null
kill -QUIT $! 2> /dev/null
wait
rm -rf "$2"`

// NewPooler starts the program pgbouncer in front of a cluster, with a few connections to each database: two, so that one
// client's transactions run on different ones. It ends with the process.
func NewPooler(program string, server *Server) (*Pooler, error) {
	dir, err := directory(server.account)
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`[databases]
* = host=%s port=%s
[pgbouncer]
unix_socket_dir = %s
listen_port = %s
auth_type = trust
auth_file = %[3]s/users
pool_mode = transaction
default_pool_size = 2
max_client_conn = 1000
logfile = %[3]s/log
`, server.dir, socketPort, dir, poolerPort)
	err = errors.Join(
		os.WriteFile(filepath.Join(dir, "pgbouncer.ini"), []byte(config), 0o644),
		os.WriteFile(filepath.Join(dir, "users"), []byte(`"`+superuser+`" ""`), 0o644),
	)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	p := &Pooler{dir: dir}
	cmd := exec.Command("/bin/sh", "-c", poolerKeeper, "belay-pooler-keeper", program, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: server.account}
	cmd.Dir = dir
	if p.alive, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := p.ready(); err != nil {
		return nil, errors.Join(err, p.alive.Close())
	}
	return p, nil
}

// ready waits until the pooler listens.
func (p *Pooler) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for tick := time.Tick(10 * time.Millisecond); ; {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", filepath.Join(p.dir, ".s.PGSQL."+poolerPort))
		if err == nil {
			return conn.Close()
		}
		select {
		case <-tick:
		case <-ctx.Done():
			said, _ := os.ReadFile(filepath.Join(p.dir, "log"))
			return fmt.Errorf("pgbouncer does not listen: %w\n%s", err, said)
		}
	}
}

// URL is the way through the pooler to the database of a URL.
func (p *Pooler) URL(direct string) (string, error) {
	u, err := url.Parse(direct)
	if err != nil {
		return "", err
	}
	query := u.Query()
	query.Set("host", p.dir)
	query.Set("port", poolerPort)
	u.RawQuery = query.Encode()
	return u.String(), nil
}
