package postgrestest

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/belayhq/belay/internal/pgproxy"
)

// Env names the variable with the URL of a server to use; its role must be allowed to create databases.
const Env = "BELAY_TEST_POSTGRES"

var shared = sync.OnceValues(func() (*Server, error) { return Own(nil) })

// Cluster returns the test process's private cluster and starts it if need be. It fails the test where Env names another
// server, which is not a test's to stop.
func Cluster(tb testing.TB) *Server {
	tb.Helper()
	if os.Getenv(Env) != "" {
		tb.Fatalf("this test stops its server: unset %s", Env)
	}
	server, err := shared()
	if err != nil {
		tb.Fatalf("start PostgreSQL: %v", err)
	}
	return server
}

// URL returns the URL of a fresh, empty database, which is dropped when the test ends.
func URL(tb testing.TB) string {
	tb.Helper()
	base := os.Getenv(Env)
	if base == "" {
		base = Cluster(tb).SocketURL("postgres")
	}
	return database(tb, base, base)
}

// LoopbackURL is URL by way of TCP, for what cannot dial a unix socket. The port is open as long as the test runs.
func LoopbackURL(tb testing.TB) string {
	tb.Helper()
	if base := os.Getenv(Env); base != "" {
		return database(tb, base, base)
	}
	url, _ := Proxied(tb)
	return url
}

// Proxied is URL by way of a network of the test's own.
func Proxied(tb testing.TB) (string, *pgproxy.Proxy) {
	tb.Helper()
	base := os.Getenv(Env)
	if base == "" {
		base = Cluster(tb).SocketURL("postgres")
	}
	return Through(tb, database(tb, base, base))
}

// Through starts a proxy before the server of a URL and returns the URL by way of it.
func Through(tb testing.TB, direct string) (string, *pgproxy.Proxy) {
	tb.Helper()
	server, err := pgx.ParseConfig(direct)
	if err != nil {
		tb.Fatalf("server's URL: %v", err)
	}
	network, address := pgconn.NetworkAddress(server.Host, server.Port)
	proxy := pgproxy.Start(tb, network, address)
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(server.User, server.Password), Host: proxy.Address(),
		Path: server.Database, RawQuery: "sslmode=disable",
	}
	if server.Password == "" {
		u.User = url.User(server.User)
	}
	return u.String(), proxy
}

// database makes a database by way of admin and returns base with its name.
func database(tb testing.TB, admin, base string) string {
	tb.Helper()
	name := "belay_" + strings.ToLower(rand.Text())
	if err := run(tb.Context(), admin, `CREATE DATABASE `+name); err != nil {
		tb.Fatalf("create database: %v", err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := run(ctx, admin, `DROP DATABASE IF EXISTS `+name+` WITH (FORCE)`); err != nil {
			tb.Errorf("drop database: %v", err)
		}
	})
	u, err := url.Parse(base)
	if err != nil {
		tb.Fatalf("server's URL: %v", err)
	}
	u.Path = "/" + name
	return u.String()
}

func run(ctx context.Context, server, sql string) error {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}
